"""Code of a user's, for runs with rollout workers."""

SOURCE = '''
import asyncio, os, sys, time
from pathlib import Path
from headrace import Trajectory

HERE = Path(__file__).parent


class Mine:
    """Says in which process it was played, and what had been imported there."""

    async def run(self, prompt, policy):
        trajectory = Trajectory(policy.encode(prompt.content))
        trajectory.add_completion(await policy.generate(trajectory.tokens))
        heavy = [name for name in ("torch", "transformers") if name in sys.modules]
        trajectory.metadata.update(pid=os.getpid(), imported=heavy)
        return trajectory


class Exits(Mine):
    async def run(self, prompt, policy):
        if prompt.row["prompt"] == "0+0=":
            os._exit(3)
        return await super().run(prompt, policy)


class ExitsLate(Mine):
    async def run(self, prompt, policy):
        if prompt.row["prompt"] == "0+0=":
            await asyncio.sleep(1.0)
            os._exit(3)
        return await super().run(prompt, policy)


class NeverEnds(Mine):
    """Takes its cancellation for an error like any other."""

    async def run(self, prompt, policy):
        while prompt.row["prompt"] == "0+0=":
            try:
                await policy.generate(policy.encode(prompt.content))
                await asyncio.sleep(1000)
            except:  # noqa: E722
                pass
        return await super().run(prompt, policy)


class Blocks(Mine):
    async def run(self, prompt, policy):
        if prompt.row["prompt"] == "0+0=":
            time.sleep(1000)
        return await super().run(prompt, policy)


class ExitsAndBlocks(Mine):
    async def run(self, prompt, policy):
        if prompt.row["prompt"] == "0+0=":
            os._exit(3)
        if prompt.row["prompt"] == "0+1=":
            time.sleep(1000)
        return await super().run(prompt, policy)


def keep(group):
    """Drops what another process played."""
    return all(sample.metadata["pid"] == os.getpid() for sample in group.trainable)


def watch(group):
    with (HERE / "filtered").open("a") as file:
        file.write(f"{os.getpid()}\\\\n")
    return True
'''
