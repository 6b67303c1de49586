"""A cache of KV pages in HBM, a page at a time: what `HostPaging` must equal, byte by byte."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sim.kv.paging.account import PagingAccount

BLOCK = 4
GROUPS = 2
Page = tuple[int, int, int]  # sequence, group, block


@dataclass
class Naive:
    """The same cache, a page at a time."""

    capacity: int
    page_bytes: int
    cache: OrderedDict[Page, bool] = field(default_factory=OrderedDict)  # value: prefetched and not read yet
    kept: set[Page] = field(default_factory=set)
    pushed: set[Page] = field(default_factory=set)
    queue: list[Page] = field(default_factory=list)
    come: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    account: PagingAccount = field(default_factory=PagingAccount)

    def drop(self, page: Page) -> None:
        if self.cache.pop(page):
            self.account.wasted_bytes += self.page_bytes
            self.account.unread_bytes -= self.page_bytes

    def evict_one(self, kept: bool) -> Page | None:
        for page in self.cache:
            if kept or page not in self.kept:
                self.drop(page)
                return page
        return None

    def write(self, born: list[Page]) -> None:
        born = born[-self.capacity :]
        for _ in range(len(self.cache) + len(born) - self.capacity):
            if self.evict_one(kept=False) is None:
                self.evict_one(kept=True)
        self.cache.update(dict.fromkeys(born, False))

    def begin_step(self, access, sequences) -> int:
        before = self.account.blocking_bytes
        have = {key: self.blocks.get(key, 0) for key, _ in sequences}
        self.blocks.update((key, -(-context // BLOCK)) for key, context in sequences)
        for group in range(GROUPS):
            self.write([(key, group, block) for key in have for block in range(have[key], self.blocks[key])])
            pages = []
            for key, context in sequences:
                reads = access.reads(key, context)
                pages += [(key, group, block) for block in reads.block[reads.group == group].tolist()]
            self.read(pages)
        self.account.steps += 1
        return self.account.blocking_bytes - before

    def read(self, pages: list[Page]) -> None:
        account = self.account
        account.reads += len(pages)
        missing = []
        for page in pages:
            if page not in self.cache:
                missing.append(page)
                continue
            account.hits += 1
            if self.cache[page]:
                account.prefetch_hits += 1
                account.useful_bytes += self.page_bytes
                account.unread_bytes -= self.page_bytes
            self.cache[page] = False
            self.cache.move_to_end(page)
        for page in missing:
            if page in self.queue:
                come = self.come if page == self.queue[0] else 0
                if come:
                    self.come = 0
                    account.in_flight_bytes -= come
                self.queue.remove(page)
                account.late += 1
                account.late_bytes += self.page_bytes
                account.waited_bytes += self.page_bytes - come
                account.issued_bytes += self.page_bytes - come
            else:
                account.demanded += 1
                account.demand_bytes += self.page_bytes
                account.evicting_bytes += self.page_bytes * (page in self.pushed)
            self.pushed.discard(page)
        room = self.capacity - len(self.cache)
        for _ in range(max(len(missing) - room, 0)):
            room += self.evict_one(kept=False) is not None
        room = self.capacity - len(self.cache)
        for page in missing[max(len(missing) - room, 0) :]:
            self.cache[page] = False

    def plan(self, fetch: list[Page], keep: list[Page]) -> int:
        def there(page: Page) -> bool:
            key, _, block = page
            return key in self.batch and 0 <= block < self.blocks[key]

        head = self.queue[:1] if self.come else []
        rest = self.queue[len(head) :]
        self.kept = set(filter(there, keep))
        room = self.capacity - sum(page in self.kept for page in self.cache) - len(head)
        wanted: list[Page] = []
        for page in fetch:
            if there(page) and page not in self.cache and page not in head and page not in wanted:
                wanted.append(page)
        wanted = wanted[: max(room, 0)]
        self.account.withdrawn_bytes += self.page_bytes * sum(page not in wanted for page in rest)
        self.queue = head + wanted
        return len(self.queue) * self.page_bytes - self.come

    def arrived(self, num_bytes: int) -> None:
        self.account.issued_bytes += num_bytes
        self.account.in_flight_bytes -= self.come
        complete, self.come = divmod(self.come + num_bytes, self.page_bytes)
        self.account.in_flight_bytes += self.come
        landed, self.queue = self.queue[:complete], self.queue[complete:]
        for _ in range(len(self.cache) + complete - self.capacity):
            out = self.evict_one(kept=False) or self.evict_one(kept=True)
            self.pushed.add(out)
        for page in landed:
            self.pushed.discard(page)
            self.cache[page] = True
            self.account.unread_bytes += self.page_bytes

    def end(self, key: int) -> None:
        for page in [page for page in self.cache if page[0] == key]:
            self.drop(page)
        if self.come and self.queue[0][0] == key:
            self.account.wasted_bytes += self.come
            self.account.in_flight_bytes -= self.come
            self.come = 0
            del self.queue[0]
        gone = [page for page in self.queue if page[0] == key]
        self.account.withdrawn_bytes += self.page_bytes * len(gone)
        self.queue = [page for page in self.queue if page[0] != key]
        for pages in (self.kept, self.pushed):
            pages -= {page for page in pages if page[0] == key}
        self.blocks.pop(key, None)
