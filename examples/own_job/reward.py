"""The reward of this job: how much of the wanted answer's letters the response has."""


def score(response: str, row: dict) -> float:
    """Share of the distinct characters of `row["answer"]` that are in the response: 0.0 to 1.0."""
    wanted = set(row["answer"])
    return len(wanted & set(response)) / len(wanted)
