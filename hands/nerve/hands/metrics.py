"""Every instrument of a Hands process. No identity is a label."""

from nerve.common.metrics import SECONDS, SIZES, Counter, Gauge, Histogram


class HandsMetrics:
    def __init__(self, route: str) -> None:
        self.route = route
        self.admissions = Counter(
            "nerve_hands_admissions", "commands by what became of them", ("route", "admission")
        )
        self.executions = Counter(
            "nerve_hands_executions", "ended executions", ("route", "state", "effect")
        )
        self.recoveries = Counter(
            "nerve_hands_recoveries", "executions that were started again", ("route",)
        )
        self.refused = Counter(
            "nerve_hands_refused", "messages refused at the door", ("route", "code")
        )
        self.observations = Counter(
            "nerve_hands_observations",
            "results of owners that had lost their execution",
            ("route",),
        )
        self.running = Gauge("nerve_hands_running", "tools that run now", ("route",))
        self.free = Gauge("nerve_hands_free_slots", "slots that are free now", ("route",))
        self.seconds = Histogram(
            "nerve_hands_tool_seconds", "how long tools ran", ("route",), bounds=SECONDS
        )

        self.batch = Histogram(
            "nerve_hands_batch_units", "units that shared a commit", ("route",), bounds=SIZES
        )
        self.commit = Histogram(
            "nerve_hands_commit_seconds",
            "from BEGIN to the end of COMMIT",
            ("route",),
            bounds=SECONDS,
        )
        self.outbox = Gauge("nerve_hands_outbox_rows", "updates not confirmed yet", ("route",))
        self.outbox_age = Gauge(
            "nerve_hands_outbox_oldest_seconds", "age of the oldest of them", ("route",)
        )
        self.held = Gauge(
            "nerve_hands_open_executions",
            "executions that are not settled, by state",
            ("route", "state"),
        )
        self.pool_waiting = Gauge(
            "nerve_pool_waiting", "admitted executions that wait for a slot", ("route",)
        )
        self.pool_waiting_oldest = Gauge(
            "nerve_pool_waiting_oldest_seconds", "age of the oldest of them", ("route",)
        )
        self.pool_running = Gauge(
            "nerve_pool_running", "executions that run on any replica", ("route",)
        )
        self.pool_running_oldest = Gauge(
            "nerve_pool_running_oldest_seconds", "age of the oldest of them", ("route",)
        )
        self.pool_replicas = Gauge(
            "nerve_pool_replicas", "replicas that are not released", ("route",)
        )
        self.pool_queued = Gauge(
            "nerve_pool_queued", "commands on the broker that nobody holds", ("route",)
        )
        self.blocked = Counter(
            "nerve_hands_loop_blocked", "times that a tool blocked the event loop", ("route",)
        )
        self.beat_late = Gauge(
            "nerve_hands_lease_late_seconds", "how late the last heartbeat was", ("route",)
        )

    def observe_commit(self, units: int, seconds: float) -> None:
        self.batch.observe(units, self.route)
        self.commit.observe(seconds, self.route)

    def instruments(self) -> list[Counter | Gauge | Histogram]:
        return [
            self.admissions,
            self.executions,
            self.recoveries,
            self.refused,
            self.observations,
            self.running,
            self.free,
            self.seconds,
            self.batch,
            self.commit,
            self.outbox,
            self.outbox_age,
            self.held,
            self.pool_waiting,
            self.pool_waiting_oldest,
            self.pool_running,
            self.pool_running_oldest,
            self.pool_replicas,
            self.pool_queued,
            self.blocked,
            self.beat_late,
        ]
