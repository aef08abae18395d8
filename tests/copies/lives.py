"""One life of a group: load and faults by a seed, then peace, and the comparison of all logs."""

import random
import tempfile
from pathlib import Path

from duetime_store.copies.copy import ENTRIES_MAX
from duetime_store.copies.roster import Newcomer

from tests.copies.simulator import Damage, Group, Machine, Violation

LOAD_MS = 4_000
PEACE_MS = 60_000


class Life:
    """See the module."""

    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed + 1)
        self.group = Group(root, seed, 5 if seed % 10 == 9 else 3)
        self._tokens = 0
        self._faulty = True
        # New leaders die at once: many short terms, each with an entry that few have.
        self._restless = self.dice.random() < 0.3
        self._unseated = 0
        self._members: frozenset[int] = frozenset()
        # Copies compact in half of the lives, some of them in each tick.
        self.group.entries_max = random.Random(seed + 3).choice((0, 8, 32, ENTRIES_MAX, ENTRIES_MAX, ENTRIES_MAX))
        # Segments are deleted in a third; not with flipped bytes, since a deleted range has no other copy.
        self.group.cuts = random.Random(seed + 4).random() < 0.33
        # Members change in every third life.
        self._changes = random.Random(seed + 2) if seed % 3 == 2 else None
        self._highest = max(self.group.voters)
        # Leaders are read in every other life.
        self._reads = random.Random(seed + 3) if seed % 2 == 0 else None

    def run(self) -> Group:
        group, dice = self.group, self.dice
        group.is_even = dice.random() < 0.5
        if self._restless:
            group.after(0, self._unseat)
        group.loss, group.double, group.slow = (dice.choice((0.0, 0.02, 0.1)) for _ in range(3))
        for machine in [*group.machines.values()]:
            machine.boot()
        group.after(0, self._propose)
        group.after(dice.randrange(300, 900), self._fault)
        if self._changes is not None:
            group.after(self._changes.randrange(200, 600), self._replace, self._changes)
        if self._reads is not None:
            group.after(0, self._read, self._reads)
        group.run(LOAD_MS)
        self._peace()
        self._compare()
        return group

    def _token(self) -> bytes:
        self._tokens += 1
        return b"<%06d>" % self._tokens

    def _propose(self) -> None:
        if self._faulty:
            leaders = [each for each in self.group.machines.values() if self._leads(each)]
            if leaders:
                self.dice.choice(leaders).propose(self._token())
            self.group.after(self.dice.randrange(2, 30), self._propose)

    def _read(self, dice: random.Random) -> None:
        """Reads one of the copies, which may take itself for the leader; sometimes its process is stopped before."""
        if self._faulty:
            leaders = [each for each in self.group.machines.values() if self._leads(each)]
            if leaders and dice.random() < 0.02:
                dice.choice(leaders).stop(dice.randrange(100, 600))
            dice.choice([*self.group.machines.values()]).read(asks=dice.random() < 0.8)
            self.group.after(dice.randrange(1, 15), self._read, dice)

    def _leads(self, machine: Machine) -> bool:
        return machine.copy is not None and machine.copy.node.status()["role"] == "leader"

    def _unseat(self) -> None:
        for machine in [*self.group.machines.values()]:
            copy = machine.copy
            if copy is not None and self._leads(machine) and copy.node.status()["term"] > self._unseated:
                self._unseated = copy.node.status()["term"]
                if self.dice.random() < 0.9:
                    machine.crash(power=self.dice.random() < 0.3)
        if self._faulty:
            self.group.after(self.dice.randrange(2, 12), self._unseat)

    def _fault(self) -> None:
        group, dice = self.group, self.dice
        if not self._faulty:
            return
        up = [each for each in group.machines.values() if each.is_up]
        kind = dice.choice(("crash", "crash", "cut", "cut", "operation", "operation", "all", "flip", "hand over"))
        if kind == "crash" and up:
            dice.choice(up).crash(power=dice.random() < 0.5)
        elif kind == "operation" and up:
            leaders = [each for each in up if self._leads(each)]
            dice.choice(leaders or up).disk.cut_power_in(dice.randrange(1, 30))
        elif kind == "all":
            for machine in up:
                machine.crash(power=True)
        elif kind == "cut":
            group.cut(both_ways=dice.random() < 0.5)
            group.after(dice.randrange(100, 800), group.heal)
        elif kind == "flip" and not group.cuts:
            self._flip()
        elif kind == "hand over":
            self._hand_over()
        group.faults += 1
        group.after(dice.randrange(30, 500), self._fault)

    def _flip(self) -> None:
        """One damaged disk at a time: two may lose data, as documented."""
        machines = [*self.group.machines.values()]
        if all(each.copy is not None for each in machines):
            machine = self.dice.choice(machines)
            machine.crash(power=False)
            machine.flip()
            self.group.after(20, self._repair, machine)

    def _repair(self, machine: Machine) -> None:
        if machine.copy is None:
            machine.repair()
            self.group.after(20, self._repair, machine)

    def _hand_over(self) -> None:
        for machine in [*self.group.machines.values()]:
            copy = machine.copy
            if copy is not None and self._leads(machine):
                to = self.dice.choice([each for each in copy.roster.voters if each != machine.number])
                machine.act(lambda copy=copy, to=to: copy.transfer(to))  # type: ignore[misc]

    def _replace(self, dice: random.Random) -> None:
        """A machine that takes a directory replaces another one, or is added or removed."""
        group = self.group
        leaders = [each for each in group.machines.values() if self._leads(each)]
        if not self._faulty:
            return
        group.after(dice.randrange(100, 500), self._replace, dice)
        if not leaders:
            return
        leader = dice.choice(leaders)
        copy = leader.copy
        assert copy is not None
        roster = copy.roster
        others = [number for number in roster.voters if number != leader.number]
        if len(roster.voters) > 3 and dice.random() < 0.5:
            leader.act(lambda: copy.change([(dice.choice(others), "removed")]))
        elif not roster.learners:
            # A change may be lost with its leader: it is repeated.
            waiting = [number for number in group.machines if number > roster.highest]
            number = min(waiting, default=self._highest + 1)
            old = dice.choice([*others, leader.number, 0])
            done: list[bool] = []
            newcomer = Newcomer(number, f"10.0.0.{number}:1", old)
            leader.act(lambda: done.append(copy.change([(number, "learner")], newcomer)))
            if done == [True] and number > self._highest:
                self._highest = number
                group.machines[number] = Machine(group, number, joins=True)
                group.machines[number].boot()

    def _peace(self) -> None:
        """No more faults: the group must commit one more entry at all members."""
        group = self.group
        self._faulty = False
        group.heal()
        group.loss = group.double = group.slow = 0.0
        for machine in [*group.machines.values()]:
            machine.disk.operations_left = -1
        last = b""
        while group.now < LOAD_MS + PEACE_MS:
            group.run(group.now + 200)
            if last not in group.truth.answered:
                last = self._token()
                for machine in [*group.machines.values()]:
                    if self._leads(machine) and machine.propose(last):
                        break
            elif self._is_quiet():
                return
        raise Violation(
            f"no progress in {PEACE_MS} ms without faults: {[self._state(m) for m in group.machines.values()]}"
        )

    def _state(self, machine: Machine) -> object:
        return machine.damage or machine.is_up if machine.copy is None else machine.copy.node.status()

    def _is_quiet(self) -> bool:
        """Whether all members applied all that was committed."""
        committed = len(self.group.truth.places)
        leaders = [machine for machine in self.group.machines.values() if self._leads(machine)]
        if len(leaders) != 1 or leaders[0].copy is None or leaders[0].copy.roster.learners:
            return False
        self._members = leaders[0].copy.roster.numbers
        if not self._members <= self.group.machines.keys():
            # This leader has yet to apply the removal of a member that has left.
            return False
        copies = [self.group.machines[number].copy for number in self._members]
        return all(copy is not None and copy.node.status()["applied"] == committed for copy in copies)

    @property
    def _machines(self) -> list[Machine]:
        return [self.group.machines[number] for number in self._members]

    def _compare(self) -> None:
        places, answered = self.group.truth.places, self.group.truth.answered
        logs, begin = [], max(machine.log.min_position for machine in self._machines)
        for number in self._members:
            copy = self.group.machines[number].copy
            assert copy is not None
            first = copy.entries[0].index
            assert [entry.index for entry in copy.entries] == list(range(first, first + len(copy.entries)))
            logs.append(copy.read(Damage(begin, places[-1].end)))
        if len(set(logs)) != 1 or len(logs[0]) != places[-1].end - begin:
            raise Violation("the logs differ")
        ends = {place.position: place.end for place in places}
        for token, position in answered.items():
            if position < begin:
                continue
            if logs[0].count(token) != 1 or not position <= begin + logs[0].index(token) < ends[position]:
                raise Violation(f"answered {token!r} is not at its place {position}")


def live(seed: int, root: Path | None = None) -> Group:
    """Runs a life in a folder of its own.

    Raises:
        Violation: with the seed, which repeats it.
    """
    with tempfile.TemporaryDirectory(dir=root) as folder:
        life = Life(Path(folder), seed)
        try:
            return life.run()
        except Exception as error:
            raise Violation(f"seed {seed}: {error}") from error
        finally:
            for machine in life.group.machines.values():
                machine.release()
