"""What trains: the actor, and the critic beside it."""
