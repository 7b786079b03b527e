"""What each tenant holds, may hold, and has spent.

Use is counted in KV blocks over all engines of the pool. Guarantee and limit are shares of the blocks of all known
engines (`kvgate_policies.fairness`), and follow them. Whoever falls below its guarantee, or rises above, is put into
the other tier of the `Turns` at once; when the use of a tenant falls, its suspended flows come back.

Tenants that do not borrow share the pool in hard partitions: all others together may take only what is not set aside
for those, the *open part*. A tenant that was never named has `TenantRules()`. What is kept of one that the rules do
not name is forgotten some time after it holds nothing any more: only its count of service is lost by that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from kvgate.ledger.base import RateSpent
from kvgate_policies.budgets import charged_ms, corrected_ms, covered_at_ms
from kvgate_policies.fairness import PoolSize, guaranteed_blocks, limit_blocks
from kvgate_policies.types import TenantRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.ledger.turns import Turns

ACCOUNTS_MIN = 256
"""Accounts of tenants below which none are looked for to be forgotten."""


@dataclass(slots=True, eq=False)
class Account:
    """One tenant in this pool."""

    rules: TenantRules
    guaranteed: int = 0
    limit: int | None = None
    """Blocks; None when nothing limits it."""
    blocks: int = 0
    reservations: int = 0
    service: float = 0.0
    """Tokens charged, corrections included."""
    tokens_tat_ms: float = 0.0
    requests_tat_ms: float = 0.0

    @property
    def partition(self) -> int:
        """Blocks that are set aside for it."""
        return 0 if self.rules.borrow else self.guaranteed

    @property
    def spare(self) -> int:
        """What it does not use of its partition."""
        return max(0, self.partition - self.blocks)


class Tenants:
    """Not safe for threads; nothing here waits."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._rules: dict[str, TenantRules] = {}
        self._accounts: dict[str, Account] = {}
        self._pool = PoolSize()
        self._blocks = 0
        """Of all tenants."""
        self._partitions = 0
        self._spare = 0
        """Sums over those that do not borrow."""
        self._sweep_at = ACCOUNTS_MIN

    # rules

    def set_rules(self, rules: Mapping[str, TenantRules]) -> None:
        """Raises ValueError for rules that no policy file could say, before anything changed."""
        check_rules(rules)
        if rules == self._rules:
            return
        self._rules = dict(rules)
        for name, account in self._accounts.items():
            account.rules = rules.get(name, TenantRules())
        for name in rules:
            self.account(name)
        self._measure()

    def resize(self, pool: PoolSize) -> None:
        """The engines changed: shares are taken anew, and flows at their limit are looked at again."""
        if pool == self._pool:
            self._turns.readmit_all()
            return
        self._pool = pool
        self._measure()

    def account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            self._sweep()
            account = Account(self._rules.get(name, TenantRules()))
            self._accounts[name] = account
            self._size(account)
        return account

    def named(self) -> Iterable[str]:
        """Those with rules of their own, and those that hold something."""
        yield from self._rules
        for name, account in self._accounts.items():
            if name not in self._rules and account.reservations:
                yield name

    @property
    def pool_blocks(self) -> int:
        return self._pool.blocks

    # use

    def hold(self, name: str, blocks: int, reservations: int) -> None:
        """Add to what a tenant holds (negative: take away)."""
        account = self.account(name)
        spare = account.spare
        account.blocks += blocks
        account.reservations += reservations
        self._blocks += blocks
        self._spare += account.spare - spare
        if account.guaranteed:
            self._turns.set_below(name, below=account.blocks < account.guaranteed)
        if blocks < 0:
            self._turns.readmit_tenant(name)

    def lacks(self, name: str, claimed: int) -> bool:
        """Whether its use, with what is kept free for it, is below its guarantee."""
        account = self.account(name)
        return account.blocks + claimed < account.guaranteed

    def left(self, name: str) -> int | None:
        """Blocks up to its limit (negative: above it); None when nothing limits it."""
        account = self.account(name)
        return None if account.limit is None else account.limit - account.blocks

    @property
    def has_partitions(self) -> bool:
        """Whether some tenant does not borrow, and has a guarantee."""
        return self._partitions > 0

    def left_open(self, name: str, kept: int) -> int:
        """Blocks that it may take of all that is not set aside for others.

        `kept` of the open part are kept free for somebody else; one with a partition of its own is not asked
        to spare them, since it takes nothing of that part.
        """
        account = self.account(name)
        room = self._pool.blocks - self._blocks - self._spare + account.spare
        return room if account.partition else room - kept

    def serve(self, name: str, work: float) -> None:
        """Count service (a correction with its sign)."""
        self.account(name).service += work

    def shares_open_part(self, name: str) -> bool:
        """Whether what it takes is taken of what no partition holds."""
        return not self.account(name).partition

    def weight(self, name: str) -> float:
        return self.account(name).rules.weight

    # budgets

    def spent(self, name: str, tokens: int, now_ms: int) -> RateSpent | None:
        """Why a request is not covered now, None when it is; nothing is charged.

        The wait is rounded up to whole ms, the resolution of the ledger's time: asked again then, it is covered.
        """
        account = self.account(name)
        by_tokens = by_requests = float("-inf")
        if account.rules.tokens_per_minute is not None:
            by_tokens = covered_at_ms(account.tokens_tat_ms, tokens, account.rules.tokens_per_minute)
        if account.rules.requests_per_minute is not None:
            by_requests = covered_at_ms(account.requests_tat_ms, 1, account.rules.requests_per_minute)
        if max(by_tokens, by_requests) <= now_ms:
            return None
        wait_s = ceil(max(by_tokens, by_requests) - now_ms) / 1000
        return RateSpent(wait_s, "tokens_per_minute" if by_tokens >= by_requests else "requests_per_minute")

    def spend(self, name: str, tokens: int, now_ms: int) -> None:
        account = self.account(name)
        rules = account.rules
        if rules.tokens_per_minute is not None:
            account.tokens_tat_ms = charged_ms(account.tokens_tat_ms, tokens, rules.tokens_per_minute, now_ms)
        if rules.requests_per_minute is not None:
            account.requests_tat_ms = charged_ms(
                account.requests_tat_ms, 1, rules.requests_per_minute, now_ms
            )

    def correct_tokens(self, name: str, difference: int) -> None:
        """It took more than it was charged (negative: less, or nothing)."""
        account = self.account(name)
        if account.rules.tokens_per_minute is not None:
            account.tokens_tat_ms = corrected_ms(
                account.tokens_tat_ms, difference, account.rules.tokens_per_minute
            )

    def _measure(self) -> None:
        """Take all shares anew."""
        accounts = self._accounts.values()
        for account in accounts:
            account.guaranteed = guaranteed_blocks(account.rules, self._pool)
        self._partitions = sum(account.partition for account in accounts)
        self._spare = sum(account.spare for account in accounts)
        for name, account in self._accounts.items():
            self._size(account)
            self._turns.set_below(name, below=account.blocks < account.guaranteed)
        self._turns.readmit_all()

    def _size(self, account: Account) -> None:
        account.limit = limit_blocks(account.rules, self._pool, self._partitions - account.partition)

    def _sweep(self) -> None:
        if len(self._accounts) < self._sweep_at:
            return
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.reservations or name in self._rules
        }
        self._sweep_at = max(ACCOUNTS_MIN, 2 * len(self._accounts))

    def __repr__(self) -> str:
        return f"<Tenants {len(self._accounts)} known, {self._blocks} of {self._pool.blocks} blocks>"


def check_rules(rules: Mapping[str, TenantRules]) -> None:
    """Raises ValueError for rules that no policy file could say."""
    for name, each in rules.items():
        _check(name, each)


def _check(name: str, rules: TenantRules) -> None:
    if not 0 < rules.weight < float("inf"):
        raise ValueError(f"tenant {name}: a weight is a number above 0, not {rules.weight}")
    if not (0 <= rules.guarantee <= 1 and 0 <= rules.limit <= 1):
        raise ValueError(f"tenant {name}: guarantee and limit are shares between 0 and 1")
    budgets = (rules.tokens_per_minute, rules.requests_per_minute, rules.limit_tokens)
    if any(budget is not None and budget < 1 for budget in budgets):
        raise ValueError(f"tenant {name}: a budget or limit is at least 1")
