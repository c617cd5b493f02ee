"""Between text and token ids: messages, chat templates, conversations, stop texts."""
