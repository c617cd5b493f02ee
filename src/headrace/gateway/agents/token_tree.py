"""An episode as a tree: a node holds only the tokens that it adds, so a path, concatenated, is what the model saw.

A prompt is a node, and so is each answer to it. A turn that goes on from an answer adds a node below it, and a
rewritten history one elsewhere; no token of a node is ever encoded again. Each answer is trained once, in the first
path that it is on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.engines.completions import Completion
from headrace.engines.protocol import FinishReason
from headrace.experience.sample import SampleStatus
from headrace.experience.text.conversation import Messages
from headrace.rollout.trajectory import Trajectory


@dataclass(eq=False, slots=True)
class Node:
    """What a turn adds: to the prompt, or by an answer."""

    parent: Node | None
    tokens: NDArray[np.int32]
    completion: Completion | None = None
    """Of an answer: what was sampled."""
    number: int = -1
    """Of an answer: how many were sampled before."""
    delivered: bool = False
    """Of an answer: whether the agent got it. What it never saw is not trained."""
    messages: Messages | None = None
    """Of an answer: the conversation up to it, for rewards."""
    thoughts: frozenset[int] = frozenset()
    """Of an answer: places of those messages whose thoughts are on its path."""
    response: str = ""
    """Of an answer: its text."""
    is_cut_off: bool = False
    """Of an answer: the context had no room for a turn after it."""
    below: list[Node] = field(default_factory=list)

    @property
    def can_go_on(self) -> bool:
        """Whether a turn may follow: what a limit cut off is no turn."""
        is_whole = self.completion is not None and self.completion.finish_reason is not FinishReason.LENGTH
        return is_whole and len(self.tokens) > 0

    @property
    def is_greedy(self) -> bool:
        """Whether it is an answer that was not drawn, and so is not trained."""
        return self.completion is not None and self.completion.temperature == 0

    @property
    def path(self) -> list[Node]:
        """From the first prompt to this."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def path_tokens(self) -> NDArray[np.int32]:
        """What the model saw up to the end of this."""
        return np.concatenate([node.tokens for node in self.path])


class TokenTree:
    """All prompts and answers of one episode."""

    def __init__(self) -> None:
        self._first: list[Node] = []
        self._answers: list[Node] = []

    @property
    def answers(self) -> list[Node]:
        """In the order in which they were sampled."""
        return list(self._answers)

    def prompt(self, parent: Node | None, tokens: NDArray[np.int32]) -> Node:
        """The node of a prompt after `parent` (an answer, or None for a new beginning), made unless it is there."""
        siblings = self._first if parent is None else parent.below
        for node in siblings:
            if np.array_equal(node.tokens, tokens):
                return node
        node = Node(parent, tokens)
        siblings.append(node)
        return node

    def answer(self, prompt: Node, completion: Completion) -> Node:
        node = Node(prompt, completion.tokens, completion, len(self._answers))
        prompt.below.append(node)
        self._answers.append(node)
        return node

    def trajectories(self) -> list[Trajectory]:
        """A history for each answer that no other went on from, in the order of these last answers. A token that was
        sampled is chosen in one of them, and observed in the others."""
        seen: set[int] = set()
        last = [node for node in self._answers if node.delivered and len(node.tokens) and not _goes_on(node)]
        return [_history(node, seen) for node in last]


def _goes_on(node: Node) -> bool:
    """Whether an answer below it was delivered."""
    return any(answer.delivered and len(answer.tokens) for prompt in node.below for answer in prompt.below)


def _history(last: Node, seen: set[int]) -> Trajectory:
    """`seen`: numbers of the answers that are trained already; those of this history join them."""
    path = last.path
    trajectory = Trajectory(path[0].tokens)
    for node in path[1:]:
        if node.completion is None or node.number in seen:
            trajectory.add_observation(node.tokens)
        else:
            trajectory.add_completion(node.completion)
            seen.add(node.number)
    trajectory.messages, trajectory.response = last.messages, last.response
    if last.is_cut_off:
        trajectory.status = SampleStatus.TRUNCATED
    trajectory.metadata["turns"] = sum(node.completion is not None for node in path)
    return trajectory
