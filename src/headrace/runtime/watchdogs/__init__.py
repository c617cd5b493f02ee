"""What sees that an event loop goes round."""
