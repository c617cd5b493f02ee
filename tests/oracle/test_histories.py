"""What is compared with `verifiers`, by hand."""

from __future__ import annotations

from histories import Part, as_recorded, trained_once

PROMPT, ANSWER = Part(0, [1, 2], [False, False]), Part(1, [3, 4], [True, True])
SAME_PROMPT, SAME_ANSWER = Part(6, [1, 2], [False, False]), Part(7, [3, 4], [True, True])
"""Of equal ids: drawn anew."""
PATHS = [
    [PROMPT, ANSWER, Part(2, [5], [False]), Part(3, [6], [True])],
    [PROMPT, ANSWER, Part(4, [7], [False]), Part(5, [8, 9], [True, False])],
    [SAME_PROMPT, SAME_ANSWER],
]
IDS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8, 9], [1, 2, 3, 4]]
NO, YES = False, True


def test_what_several_histories_share_was_sampled_in_each() -> None:
    masks = [[NO, NO, YES, YES, NO, YES], [NO, NO, YES, YES, NO, YES, NO], [NO, NO, YES, YES]]
    assert as_recorded(PATHS) == list(zip(IDS, masks, strict=True))


def test_it_is_trained_in_the_first_of_them() -> None:
    masks = [[NO, NO, YES, YES, NO, YES], [NO, NO, NO, NO, NO, YES, NO], [NO, NO, YES, YES]]
    assert trained_once(PATHS) == list(zip(IDS, masks, strict=True))
    first, second, _ = trained_once([PATHS[1], PATHS[0], PATHS[2]])
    assert first == (IDS[1], [NO, NO, YES, YES, NO, YES, NO])
    assert second == (IDS[0], [NO, NO, NO, NO, NO, YES])
