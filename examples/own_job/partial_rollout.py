"""A rollout function: over-sampling, a filter of groups, and partial rollouts, as slime's `generate_rollout` has them.

More groups are begun than a batch needs. The first that end, and are not all alike, make it; what is under way then is
aborted, put back into the buffer with the tokens that it has, and gone on with by the next call. Others that have ended
go to the buffer too, which hands them on: they are trained with a later batch.

    headrace train grpo.yaml rollout.function=partial_rollout.py:generate_rollout
"""

import asyncio

from headrace.experience.sample import SampleStatus

OVERSAMPLING = 1.5
"""Groups that are under way for each that is wanted."""


async def generate_rollout(buffer, batch, evaluation):
    if evaluation:
        return await evaluate(buffer)
    target = buffer.prompts_per_batch
    data, dropped, pendings = [], 0, set()
    while len(data) < target:
        while len(pendings) + len(data) < target * OVERSAMPLING:
            groups = await buffer.get(int(target * OVERSAMPLING))
            if not groups:  # the schedule lets no more start
                break
            pendings |= {asyncio.create_task(generate_and_reward_group(group)) for group in groups}
        if not pendings:
            break
        done, pendings = await asyncio.wait(pendings, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            dropped += await place(buffer, task.result(), data, target)
    for group in await abort(buffer, pendings):
        dropped += await place(buffer, group, data, target)
    buffer.metadata["dropped"] = buffer.metadata.get("dropped", 0) + dropped
    await buffer.save()
    return data


async def place(buffer, group, data, target):
    """How many groups that dropped."""
    if not all(sample.is_finished for sample in group):
        await buffer.add([group])  # which gives it to the next call
    elif not has_reward_spread(group):
        await buffer.drop([group])
        return 1
    elif len(data) < target:
        data.append(group)
    else:
        await buffer.add([group])  # which has it trained with a later batch
    return 0


async def generate_and_reward_group(group):
    await asyncio.gather(*(generate_and_reward(sample) for sample in group))
    return group


async def generate_and_reward(sample):
    if sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED) and sample.reward is not None:
        return
    await sample.generate()
    if sample.status is SampleStatus.ABORTED:
        return
    await sample.score()


async def abort(buffer, pendings):
    """The groups that were under way, with what they have."""
    await buffer.abort()
    groups = await asyncio.gather(*pendings)
    for group in groups:
        for sample in group:
            sample.metadata.setdefault("aborted_at", sample.response_length)
    return groups


def has_reward_spread(group):
    rewards = [sample.reward for sample in group if sample.reward is not None]
    return len(set(rewards)) > 1


async def evaluate(buffer):
    data = []
    while groups := await buffer.get(64):
        data += await asyncio.gather(*map(generate_and_reward_group, groups))
    return data
