"""Event-driven list scheduling: a free queue takes the best operator that is ready."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class EarliestReady:
    """One simulation.

    Among the operators that wait for a queue, the lowest priority number comes first, then the
    earliest ready time, then the issue order. An operator of several queues starts when it is the
    first of each and all are free.

    Events are (time, number); a number means the end of an operator, a queue that becomes free
    after its gap, or a host that has issued an operator.

    Args:
        times: seconds of each operator.
        before: predecessors of each operator.
        order: order in which hosts issue operators.
        places: numbers of the queues that each operator occupies.
        hosts: numbers of the hosts that issue each operator.
        blocking: whether the hosts wait for the operator.
        priorities: priority of each operator.
        launch_s, gap_s: see `ReplayOptions`.
    """

    def __init__(
        self,
        times: Sequence[float],
        before: Sequence[Sequence[int]],
        order: Sequence[int],
        places: Sequence[tuple[int, ...]],
        hosts: Sequence[tuple[int, ...]],
        blocking: Sequence[bool],
        priorities: Sequence[int],
        launch_s: float,
        gap_s: float,
    ) -> None:
        count = len(times)
        self.times, self.places, self.hosts = times, places, hosts
        self.blocking, self.priorities = blocking, priorities
        self.launch_s, self.gap_s = launch_s, gap_s
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.waiting = [len(before[index]) + len(hosts[index]) for index in range(count)]
        for index, earlier in enumerate(before):
            for place in earlier:
                self.after[place].append(index)
        self.issued: list[list[int]] = [[] for _ in range(1 + max(max(one) for one in hosts))]
        self.position = [0] * count
        for position, index in enumerate(order):
            self.position[index] = position
            for host in hosts[index]:
                self.issued[host].append(index)
        self.next_issue = [0] * len(self.issued)
        self.clock = [0.0] * len(self.issued)
        self.ready: list[list[tuple[int, float, int, int]]] = [
            [] for _ in range(1 + max(max(one) for one in places))
        ]
        self.is_free = [True] * len(self.ready)
        self.start, self.end = [0.0] * count, [0.0] * count
        self.events: list[tuple[float, int]] = []

    def run(self) -> tuple[list[float], list[float], float]:
        """Returns the starts, the ends and the total."""
        count, queues = len(self.times), len(self.ready)
        for host in range(len(self.issued)):
            self._issue(host, 0.0)
        for number in range(queues):
            self._start_first(number, 0.0)
        while self.events:
            now = self.events[0][0]
            changed: list[int] = []
            # All events of one time are handled before a queue chooses.
            while self.events and self.events[0][0] == now:
                number = heapq.heappop(self.events)[1]
                if number < count:
                    changed += self._ended(number, now)
                elif number < count + queues:
                    self.is_free[number - count] = True
                    changed.append(number - count)
                else:
                    changed += self._issue(number - count - queues, now)
            for queue in dict.fromkeys(changed):
                self._start_first(queue, now)
        return self.start, self.end, max(max(self.end), max(self.clock))

    def _issue(self, host: int, now: float) -> list[int]:
        """Issues what a host can issue at this time; returns the queues with new operators."""
        changed: list[int] = []
        own = self.issued[host]
        if self.launch_s > 0 and now > 0 and self.clock[host] == now:
            # The launch that ends now.
            index = own[self.next_issue[host]]
            self.next_issue[host] += 1
            changed += self._one_less(index, now)
            if self.blocking[index]:
                return changed
        while self.next_issue[host] < len(own):
            if self.launch_s > 0:
                self.clock[host] = now + self.launch_s
                number = len(self.times) + len(self.ready) + host
                heapq.heappush(self.events, (self.clock[host], number))
                return changed
            index = own[self.next_issue[host]]
            self.next_issue[host] += 1
            changed += self._one_less(index, now)
            if self.blocking[index]:
                return changed
        return changed

    def _one_less(self, index: int, now: float) -> list[int]:
        """Removes one dependency of an operator; returns its queues if that was the last one."""
        self.waiting[index] -= 1
        if self.waiting[index]:
            return []
        entry = (self.priorities[index], now, self.position[index], index)
        for number in self.places[index]:
            heapq.heappush(self.ready[number], entry)
        return list(self.places[index])

    def _ended(self, index: int, now: float) -> list[int]:
        changed: list[int] = []
        for follower in self.after[index]:
            changed += self._one_less(follower, now)
        for number in self.places[index]:
            if self.gap_s > 0:
                heapq.heappush(self.events, (now + self.gap_s, len(self.times) + number))
            else:
                self.is_free[number] = True
                changed.append(number)
        if self.blocking[index]:
            for host in self.hosts[index]:
                self.clock[host] = now
                changed += self._resume(host, now)
        return changed

    def _resume(self, host: int, now: float) -> list[int]:
        """Continues a host after a blocking operator."""
        if self.launch_s > 0 and self.next_issue[host] < len(self.issued[host]):
            self.clock[host] = now + self.launch_s
            number = len(self.times) + len(self.ready) + host
            heapq.heappush(self.events, (self.clock[host], number))
            return []
        return self._issue(host, now) if self.launch_s == 0 else []

    def _start_first(self, queue: int, now: float) -> None:
        """Starts the first waiting operator of a queue if all of its queues are free."""
        if not self.is_free[queue] or not self.ready[queue]:
            return
        index = self.ready[queue][0][3]
        for number in self.places[index]:
            if not self.is_free[number] or self.ready[number][0][3] != index:
                return
        for number in self.places[index]:
            heapq.heappop(self.ready[number])
            self.is_free[number] = False
        self.start[index] = now
        self.end[index] = now + self.times[index]
        heapq.heappush(self.events, (self.end[index], index))
