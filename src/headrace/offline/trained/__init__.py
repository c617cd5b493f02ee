"""Models as the offline trainers train them: the same on one rank, and on each of several."""
