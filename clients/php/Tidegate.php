<?php

// Client of tidegate, the rate limiting daemon of this host, in one file and without extensions. It keeps one connection
// per worker process. No call throws because of the daemon, and none outlasts its deadline.

declare(strict_types=1);

namespace Tidegate;

/** Asks the daemon of this host. Making a client does no I/O; the first request connects. */
final class Client
{
    public const VERSION = '0.1.0';
    public const FAILURES_MAX = 3; // until the breaker opens
    public const PAUSE_MIN = 100_000_000, PAUSE_MAX = 2_000_000_000; // ns; jitter takes up to a half
    private const ABANDONED_MAX = 512;
    private const REPORTED_MAX = Wire::FRAME_MAX >> 1; // bytes of a request that a report may join
    private const MISSES = ['unreachable', 'timeout', 'protocol', 'breaker', 'callback'];
    private const WELL = 1, FAILING = 2; // the last logged state; 0: none
    private const SHED_A_SECOND = [2, null, null, null, null, null, 1_000_000];

    /** Deadline of a whole call in seconds. */
    public readonly float $timeout;
    private readonly bool $enabled;
    private readonly ?Fallback $fallback;
    private ?Memory $memory = null;
    private ?Connection $connection = null;
    private string $session = '';
    private int $connections = 0; // of this session
    private int $pid = 0;
    /** @var list<array{int, int}> connection and id of the requests that were given up and not yet reported */
    private array $abandoned = [];
    private array $missed = [];
    private array $refused = [];

    /**
     * @param ?string $socket path of the daemon's socket; else TIDEGATE_SOCKET, else the default paths
     * @param ?float $timeout deadline of a whole call in seconds; else TIDEGATE_TIMEOUT_MS, else 0.020
     * @param string $pool name of the application
     * @param int $slots requests that this process works on at once; 0: unknown
     * @param bool $enabled false: every request is allowed without any I/O, as with TIDEGATE_DISABLE=1
     * @param ?\Closure $logger called with each line; else error_log
     * @param Fallback|string|array<string, string>|null $fallback limits while the daemon does not answer
     * @param ?\Closure $onDecision called with each Decision and its time in seconds
     * @param bool $persistent false: the connection ends with the client
     */
    public function __construct(
        private readonly ?string $socket = null,
        ?float $timeout = null,
        private readonly string $pool = 'default',
        private readonly int $slots = 0,
        bool $enabled = true,
        private readonly ?\Closure $logger = null,
        Fallback|string|array|null $fallback = null,
        private readonly ?\Closure $onDecision = null,
        private readonly bool $persistent = true,
    ) {
        $text = (string) getenv('TIDEGATE_TIMEOUT_MS');
        $this->timeout = $timeout ?? (preg_match('/^\d+([.]\d+)?$/D', $text) ? $text / 1e3 : 0.020);
        if (!($this->timeout > 0 && $this->timeout < 2 ** 31) || $slots < 0 || $slots >= 2 ** 32) {
            throw new \ValueError('the timeout is above 0, and slots are 0 or more');
        }
        Wire::isName($pool) || throw new \ValueError("the pool $pool is not a name");
        $this->enabled = $enabled && in_array(getenv('TIDEGATE_DISABLE'), [false, '', '0'], true);
        $this->fallback = $fallback === null ? null : Fallback::of($fallback);
    }

    /**
     * Asks whether work may start, which ends with `$decision->release()`.
     *
     * @param iterable $attributes values by name; a list of such arrays is several descriptors
     * @param int|array<string, int> $cost requests, or numbers by unit
     * @param ?string $priority a word of the rules; never from an end user's header
     * @param ?string $idem idempotency key: a repeat within 60 s of the grant gets that grant; never from a header alone
     * @param ?float $queued seconds that the request already waited for the application
     * @param ?float $maxWait longest wait to accept, in seconds; 0: none
     * @param string $onFailure allow or refuse, if the daemon does not answer
     * @throws \ValueError|\TypeError only for a programmer's error, such as a negative cost
     */
    public function acquire(string $domain, iterable $attributes = [], int|array $cost = 1, ?string $priority = null,
        ?string $idem = null, ?float $queued = null, ?float $maxWait = null, string $onFailure = 'allow',
        ?Fallback $fallback = null): Decision
    {
        return $this->judge(Wire::ACQUIRE, ...func_get_args());
    }

    /** As `acquire`, for a request without an end, such as a message or a login attempt: no lease. */
    public function hit(string $domain, iterable $attributes = [], int|array $cost = 1, ?string $priority = null,
        ?string $idem = null, ?float $queued = null, ?float $maxWait = null, string $onFailure = 'allow',
        ?Fallback $fallback = null): Decision
    {
        return $this->judge(Wire::HIT, ...func_get_args());
    }

    /** Returns the decision that `acquire` would get; charges nothing. */
    public function peek(string $domain, iterable $attributes = [], int|array $cost = 1, ?string $priority = null,
        ?string $idem = null, ?float $queued = null, ?float $maxWait = null, string $onFailure = 'allow',
        ?Fallback $fallback = null): Decision
    {
        return $this->judge(Wire::PEEK, ...func_get_args());
    }

    /**
     * Runs `$work($decision)` under a lease, after the wait if any, and returns its result.
     *
     * @param mixed ...$options named arguments of `acquire`
     * @throws Denied if the work may not start
     */
    public function limit(string $domain, iterable $attributes, callable $work, mixed ...$options): mixed
    {
        $decision = $this->acquire($domain, $attributes, ...$options);
        $outcome = 'dropped';
        try {
            $decision->allowed || throw new Denied($decision);
            $decision->sleep();
            $result = $work($decision);
            $outcome = 'ok';
            return $result;
        } finally {
            $decision->release($outcome);
        }
    }

    /**
     * Charges all matching rates afterwards, into debt. A negative amount refunds part of `$of`: a decision, its lease, or
     * the `idem` of a grant or charge. True if a rule matched and the daemon allows it.
     */
    public function charge(string $domain, iterable $attributes = [], int|array $amount = 1, ?string $idem = null,
        Decision|int|string|null $of = null): bool
    {
        $cost = Wire::cost($amount, true);
        return $this->done(Wire::CHARGE, function () use ($domain, $attributes, $cost, $idem, $of): array {
            $key = $of instanceof Decision ? $of->refundKey : $of;
            if ($of instanceof Decision && $key === null) {
                throw new Fault('a refund needs a decision with a lease or an idem; this one has none', 'invalid');
            }
            $options = ['idem' => Wire::idem($idem), 'of' => is_string($key) ? Wire::idem($key) : $key];
            return (new Request(Wire::CHARGE, Wire::name($domain), Wire::describe($attributes), $cost, null, $options))->elements();
        });
    }

    /** Reports a utilization of this process, 0 to 1, which the daemon forgets after 3 s. Does not wait. */
    public function signal(string $name, float $value): void
    {
        if (!Wire::isName($name) || is_nan($value)) {
            throw new \ValueError('a signal has a name, and a value from 0 to 1');
        }
        $permille = (int) round(1_000 * min(max($value, 0.0), 1.0));
        $this->send(Wire::SIGNAL, array_map(Wire::encode(...), [$this->pool, $name, $permille]));
    }

    /** Pings the daemon; false if it does not answer, the breaker is open, or the client disabled. */
    public function check(): bool
    {
        return $this->done(Wire::PING, static fn (): array => []);
    }

    /** @return array{missed: array<string, int>, refused: array<string, int>, connections: int, breakerOpen: bool} of this client */
    public function stats(): array
    {
        $connections = $this->connection?->isOpen() ? 1 : 0;
        return ['missed' => $this->missed, 'refused' => $this->refused, 'connections' => $connections,
            'breakerOpen' => $this->memory()->get('until') > 0];
    }

    /** Closes the connection; leases end 5 s later. The client may be used again. */
    public function close(): void
    {
        $this->connection?->close();
    }

    /** Logs a line; `$once`: only the first time, with APCu once an hour of all workers. @internal */
    public function log(string $text, bool $once = false): void
    {
        if ($once && !$this->memory()->once('log.' . md5($text), 3_600)) {
            return;
        }
        try {
            $this->logger === null ? error_log("tidegate: $text") : ($this->logger)("tidegate: $text");
        } catch (\Exception) {
            // an application's logger must not fail its requests
        }
    }

    /** Counts and returns a decision without the daemon. @internal */
    public function degrade(string $reason, string $onFailure = 'allow'): Decision
    {
        $this->missed[$reason] = ($this->missed[$reason] ?? 0) + 1;
        $this->memory()->add($reason, 1);
        $this->memory()->put('unreported', 1);
        return new Decision($onFailure === 'refuse' ? self::SHED_A_SECOND : [0], $reason);
    }

    /** Refuses an invalid or forbidden request, whatever the state of the daemon. @internal */
    public function refuse(Fault $fault): Decision
    {
        $this->refused[$fault->reason] = ($this->refused[$fault->reason] ?? 0) + 1;
        $this->log("{$fault->getMessage()}; such requests are refused ($fault->reason)", true);
        return new Decision(self::SHED_A_SECOND, $fault->reason);
    }

    /** Ends a lease without waiting. @internal */
    public function release(int $lease, int $outcome, Connection $connection, int $id): void
    {
        $elements = [Wire::encode($lease), chr($outcome)];
        if ($connection->isOpen() && !$connection->isBusy() && $connection->release($elements, $id)) {
            return;
        }
        // Another connection of its session may release it. The session of an inherited one ends by itself.
        if (!$connection->inherited && !$this->send(Wire::RELEASE, $elements)) {
            $this->abandon([[$connection->number, $id]]); // reported with the next request
        }
    }

    /** Restarts a lease's time. @internal */
    public function renew(int $lease): bool
    {
        return $this->done(Wire::RENEW, static fn (): array => [Wire::encode($lease)]);
    }

    private function judge(int $op, string $domain, iterable $attributes = [], int|array $cost = 1,
        ?string $priority = null, ?string $idem = null, ?float $queued = null, ?float $maxWait = null,
        string $onFailure = 'allow', ?Fallback $fallback = null): Decision
    {
        $began = hrtime(true);
        if ($onFailure !== 'allow' && $onFailure !== 'refuse') {
            throw new \ValueError('onFailure is allow or refuse');
        }
        $cost = Wire::cost($cost);
        if (!$this->enabled) {
            return new Decision([0], 'disabled');
        }
        $options = ['idem' => Wire::idem($idem), 'queued_us' => Wire::micros($queued), 'max_wait_us' => Wire::micros($maxWait)];
        $priority = $priority !== null && Wire::isName($priority) ? $priority : null; // an invalid priority counts as none
        try {
            $request = new Request($op, Wire::name($domain), Wire::describe($attributes), $cost, $priority, $options);
            $decision = $this->decide($request, $onFailure, $fallback ?? $this->fallback, $began);
        } catch (Fault $fault) {
            $decision = $this->refuse($fault);
        }
        if ($decision->notes !== [] && in_array(['unmatched', 'domain'], $decision->notes, true)) {
            $this->log("the rules have no domain \"$domain\"; its requests are not limited", true);
        }
        if ($this->onDecision !== null && $op !== Wire::PEEK) {
            try {
                ($this->onDecision)($decision, (hrtime(true) - $began) / 1e9);
            } catch (\Throwable $error) {
                $this->log('onDecision threw ' . $error::class, true);
            }
        }
        return $decision;
    }

    /** @throws Fault if the request is refused */
    private function decide(Request $request, string $onFailure, ?Fallback $fallback, int $began): Decision
    {
        $elements = $request->elements();
        $report = $this->takeReport($elements);
        if ($report !== []) {
            $elements = $request->elements($report);
        }
        $answer = null;
        try {
            $answer = $this->ask($request->op, $elements, $began, fn (array $reply, Connection $connection, int $id): Decision =>
                new Decision($reply, null, $this->lease($reply[7] ?? null, $connection, $id), $request));
        } finally {
            if ($report !== [] && !$answer instanceof Decision) {
                $this->putReport($report); // it may not have reached the daemon
            }
        }
        if ($answer instanceof Decision) {
            $fallback?->remember($request, $answer);
            return $answer;
        }
        if (in_array($answer->reason, Fault::REFUSALS, true)) {
            throw $answer;
        }
        $missed = $this->degrade($answer->reason, $onFailure);
        return $fallback?->decide($request) ?? $missed;
    }

    private function lease(mixed $number, Connection $connection, int $id): ?Lease
    {
        return is_int($number) ? new Lease($this, $number, $connection, $id) : null;
    }

    /** Returns the options that report misses and requests given up; empty if there are none, or no room for them. */
    private function takeReport(array $elements): array
    {
        $memory = $this->memory();
        $unreported = $memory->get('unreported') > 0;
        if ((!$unreported && $this->abandoned === []) || strlen(implode('', $elements)) >= self::REPORTED_MAX) {
            return [];
        }
        $report = ['abandoned' => $this->abandoned];
        $this->abandoned = [];
        if ($unreported) {
            $memory->put('unreported', 0);
            $report['missed'] = array_filter(array_combine(self::MISSES, array_map($memory->take(...), self::MISSES)));
        }
        return array_filter($report);
    }

    private function putReport(array $report): void
    {
        foreach ($report['missed'] ?? [] as $reason => $count) {
            $this->memory()->add($reason, $count);
            $this->memory()->put('unreported', 1);
        }
        $this->abandon($report['abandoned'] ?? []);
    }

    private function abandon(array $abandoned): void
    {
        $this->abandoned = array_slice([...$abandoned, ...$this->abandoned], 0, self::ABANDONED_MAX);
    }

    /** Sends an operation; true if the daemon replies DONE with true. */
    private function done(int $op, \Closure $elements): bool
    {
        $began = hrtime(true);
        if (!$this->enabled) {
            return false;
        }
        try {
            $answer = $this->ask($op, $elements(), $began, static fn (array $reply): bool => ($reply[0] ?? null) === true);
        } catch (Fault $fault) {
            $answer = $fault;
        }
        if ($answer instanceof Fault && in_array($answer->reason, Fault::REFUSALS, true)) {
            $this->refuse($answer);
        }
        return $answer === true;
    }

    /** Writes a frame without a reply; false if the daemon cannot be reached. */
    private function send(int $op, array $elements): bool
    {
        if (!$this->enabled || $this->memory()->get('until') > 0) {
            return false;
        }
        try {
            $this->open(hrtime(true) + (int) ($this->timeout * 1e9))->send($op, $elements);
            return true;
        } catch (Fault) {
            return false;
        }
    }

    /** Returns what `$read` makes of the reply, or a Fault. No I/O while the breaker is open, but for a probe after each pause. */
    private function ask(int $op, array $elements, int $began, \Closure $read): mixed
    {
        $memory = $this->memory();
        if ($memory->get('failures') > 0 && ($until = $memory->get('until')) > 0) {
            // One probe at a time: the swap has one winner.
            if ($until > $began || !$memory->swap('until', $until, $began + self::PAUSE_MAX)) {
                return new Fault('the daemon did not answer before', 'breaker');
            }
            $probe = $this->exchange(Wire::PING, [], $began, static fn (): bool => true);
            if ($probe instanceof Fault) {
                return $probe;
            }
            $memory->put('until', 0);
            $memory->put('failures', max(1, Memory::failuresMax() - 1)); // one failure opens it again before the next decision
        }
        return $this->exchange($op, $elements, $began, $read);
    }

    private function exchange(int $op, array $elements, int $began, \Closure $read): mixed
    {
        $deadline = $began + (int) ($this->timeout * 1e9);
        for ($repeated = false;;) {
            $connection = null;
            try {
                $connection = $this->open($deadline);
                $answer = $connection->ask($op, $elements, $deadline, $read);
            } catch (Fault $fault) {
                $answer = $fault;
            } finally {
                $this->abandon($connection?->takeAbandoned() ?? []);
            }
            if (!$answer instanceof Fault || $answer->kept) {
                if ($answer instanceof Fault && !in_array($answer->reason, Fault::REFUSALS, true)) {
                    $this->log("{$answer->getMessage()}; such requests are not limited", true);
                }
                if ($op !== Wire::PING && $this->memory()->get('failures') > 0) {
                    $this->settle(null, $began);
                }
                return $answer;
            }
            $inTime = hrtime(true) < $deadline;
            if ($answer->full && $inTime) {
                usleep(1_000); // until the daemon has room
            } elseif ($answer->again && !$repeated && $inTime) {
                $repeated = true;
            } else {
                in_array($answer->reason, Fault::REFUSALS, true) || $this->settle($answer, $began);
                return $answer;
            }
        }
    }

    private function open(int $deadline): Connection
    {
        if ($this->pid !== getmypid()) { // the first call, or a fork: the child has its own session
            $this->connection?->close();
            [$this->pid, $this->session, $this->connections, $this->abandoned] = [getmypid(), random_bytes(16), 0, []];
            $this->connection = null;
        }
        $old = $this->connection;
        if ($old !== null && $old->isOpen() && !$old->isBusy()) {
            return $old;
        }
        $this->abandon($old?->takeAbandoned() ?? []);
        $number = $this->connections + 1;
        $info = ['client' => 'php/' . self::VERSION, 'session' => new Bytes($this->session), 'pid' => $this->pid];
        $info += array_filter(['pool' => $this->pool, 'slots' => $this->slots]) + ['connection' => $number];
        // Streams that outlive the request differ by process, after a fork, and by what HELLO said.
        $key = $this->persistent ? crc32("$this->pid/$this->pool/$this->slots") : null;
        $seconds = max(($deadline - hrtime(true)) / 1e9, 0.001);
        $this->connection = new Connection($this->path(), $key, $seconds, $number, (object) $info);
        $this->connections += $this->connection->inherited ? 0 : 1;
        return $this->connection;
    }

    private function path(): string
    {
        $own = getenv('XDG_RUNTIME_DIR') . '/tidegate/tidegate.sock';
        $given = ($this->socket ?? '') !== '' ? $this->socket : (string) getenv('TIDEGATE_SOCKET');
        return $given !== '' ? $given : ($own[0] === '/' && $own !== '/tidegate/tidegate.sock' && file_exists($own)
            ? $own : '/run/tidegate/tidegate.sock');
    }

    private function memory(): Memory
    {
        return $this->memory ??= new Memory('tidegate.' . $this->path() . '.');
    }

    /** Counts a failure of the daemon, or resets the count. Failures whose waits overlap count once. */
    private function settle(?Fault $fault, int $began): void
    {
        $memory = $this->memory();
        $failures = 0;
        if ($fault === null) {
            array_map(static fn (string $name) => $memory->put($name, 0), ['failures', 'pause', 'until']);
        } elseif ($began >= $memory->get('failedAt')) {
            $failures = $memory->add('failures', 1);
            $memory->put('failedAt', $now = hrtime(true));
            if ($fault->absent || $memory->get('until') > 0 || $failures >= Memory::failuresMax()) {
                $memory->put('failures', $failures = max($failures, self::FAILURES_MAX));
                $memory->put('pause', $pause = min(2 * $memory->get('pause'), self::PAUSE_MAX) ?: self::PAUSE_MIN);
                $memory->put('until', $now + intdiv($pause, 1_000) * random_int(500, 1_000));
            }
        }
        // A failure before any success is logged at once, later ones when the breaker opens. The swap has one winner.
        $state = $memory->get('state');
        $failing = $fault !== null && ($state !== self::WELL || $failures >= self::FAILURES_MAX);
        if ($failing === ($state === self::FAILING) || !$memory->swap('state', $state, $failing ? self::FAILING : self::WELL)) {
            return;
        }
        $limits = $this->fallback === null ? 'are not limited' : 'are limited by the fallback';
        $this->log($failing ? "{$fault->getMessage()}; requests $limits" : 'the daemon answers again');
    }
}

/** The answer to a request. Times are in seconds; absent fields are null. */
final readonly class Decision
{
    private const VERDICTS = ['allow' => 200, 'limit' => 429, 'shed' => 503, 'wait' => 200, 'deny' => 403];
    private const TITLES = [403 => 'Forbidden', 429 => 'Too Many Requests', 503 => 'Service Unavailable'];
    private const TYPES = [429 => 'quota-exceeded', 503 => 'temporary-reduced-capacity'];
    private const PERIODS = ['ms' => ['a', 'millisecond'], 's' => ['a', 'second'], 'min' => ['a', 'minute'], 'h' => ['an', 'hour'],
        'day' => ['a', 'day'], 'week' => ['a', 'week'], 'month' => ['a', 'month']];
    private const DIGITS_MAX = 10 ** 15 - 1; // of an integer in a header

    /** Whether the request may start; after `wait`, if that is above 0. */
    public bool $allowed;
    /** allow, limit, shed, wait or deny. */
    public string $verdict;
    /** HTTP status: 200, 429, 503 or 403. */
    public int $status;
    public ?string $rule;
    /** A float from 2^63 on. */
    public int|float|null $limit;
    public int|float|null $remaining;
    /** Seconds. */
    public ?float $window;
    /** Seconds until `remaining` would be larger. */
    public ?float $resetAfter;
    /** Seconds until a retry may succeed; null: never. */
    public ?float $retryAfter;
    /** Seconds to sleep before the start. */
    public float $wait;
    /** Number of the lease, also after its release. */
    public ?int $lease;
    /** @var list<array{string, string}> kind and rule */
    public array $notes;
    public ?string $help;
    public string $unit;
    /** The quota as the rule writes it: `5/min`. */
    public ?string $rate;
    /** Whether an operator or the rule's `block` refuses this caller. */
    public bool $blocked;
    /** Domain of a refusal by the daemon. */
    public ?string $domain;
    /** The caller's key of the rule that refuses, for `tidegate why DOMAIN --digest HEX`. */
    public ?string $digest;
    /** Whether callers may see neither name nor numbers of the rule. */
    public bool $hidden;
    /** Whether the daemon could not be asked. */
    public bool $degraded;
    /** Value of a refund's `of`. @internal */
    public string|int|null $refundKey;
    /** Microseconds of the window, of the reset and of the retry. */
    private array $micros;

    /**
     * @param list<mixed> $elements of the reply, from the verdict on
     * @param ?string $reason of a decision without the daemon, or of a refusal by the client
     * @throws Fault if the elements are malformed
     * @internal
     */
    public function __construct(array $elements, public ?string $reason = null, private ?Lease $held = null, ?Request $request = null)
    {
        [$verdict, $rule, $limit, $window, $remaining, $reset, $retry, $lease, $notes, $all, $extra] = $elements + array_fill(0, 11, null);
        $known = is_int($verdict) ? array_keys(self::VERDICTS)[$verdict] ?? null : null;
        foreach ([$limit, $window, $remaining, $reset, $retry, $lease] as $n) {
            $known = $n === null || ((is_int($n) || is_float($n)) && $n >= 0) ? $known : null;
        }
        if ($known === null || !is_string($rule ?? '') || !is_array($notes ?? []) || !is_array($all ?? []) || !is_object($extra ?? (object) [])) {
            throw new Fault('malformed decision');
        }
        $text = static fn (string $name): ?string => is_string($extra->$name ?? null) ? $extra->$name : null;
        [$this->verdict, $this->rule, $this->limit, $this->remaining] = [$known, $rule, $limit, $remaining];
        $this->status = self::VERDICTS[$known];
        $this->allowed = $this->status === 200;
        $this->micros = [$window, $reset, $retry];
        $this->window = $window === null ? null : $window / 1e6;
        $this->resetAfter = $reset === null ? null : $reset / 1e6;
        $this->retryAfter = $retry === null ? null : $retry / 1e6;
        $this->wait = $known === 'wait' ? $this->retryAfter ?? 0.0 : 0.0;
        $this->lease = $held?->number;
        $this->notes = array_filter(array_chunk($notes ?? [], 2), static fn (array $note): bool => count($note) === 2);
        $this->help = $text('help') ?: null;
        $this->unit = $text('unit') ?: 'requests';
        $this->rate = $text('rate');
        $this->blocked = ($extra->blocked ?? null) === true && $known === 'limit';
        $this->hidden = ($extra->hide ?? null) === true;
        $this->domain = $this->allowed ? null : $request?->domain;
        $this->digest = $this->hidden ? null : $text('digest');
        $this->degraded = $reason !== null && !in_array($reason, Fault::REFUSALS, true);
        $this->refundKey = $request?->options['idem'] ?? $this->lease;
    }

    /** Ends the lease with *ok*, *error* or *dropped*; nothing without a lease or the second time. Does not wait. */
    public function release(string $outcome = 'ok'): void
    {
        $this->held?->release($outcome);
    }

    /** Restarts the lease's time; false if it has expired or the daemon does not answer. */
    public function renew(): bool
    {
        return $this->held?->renew() ?? false;
    }

    /** Sleeps for `wait`. */
    public function sleep(): void
    {
        $until = hrtime(true) + (int) ($this->wait * 1e9);
        while (($left = $until - hrtime(true)) > 0) { // a signal ends usleep early
            usleep((int) min(intdiv($left, 1_000) + 1, 1_000_000));
        }
    }

    /** @return array<string, string> RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After */
    public function headers(): array
    {
        [$window, $reset, $retry] = $this->micros;
        $fields = [];
        if ($this->isNamed()) {
            [$limit, $left] = [self::cut($this->limit), self::cut($this->remaining ?? 0)];
            [$rule, $unit] = [self::quoted($this->rule), $window ? $this->unit : 'concurrent-requests'];
            $fields['RateLimit'] = "$rule;r=$left" . ($window ? ';t=' . self::whole($reset ?? 0) : '');
            $fields['RateLimit-Policy'] = "$rule;q=$limit" . ($unit === 'requests' ? '' : ';qu=' . self::quoted($unit))
                . ($window ? ';w=' . self::whole($window) : '');
            $fields['X-Ratelimit-Limit'] = $limit;
            $fields['X-Ratelimit-Remaining'] = $left;
        }
        if (!$this->allowed && $retry !== null) {
            $fields['Retry-After'] = (string) max(1, self::whole($retry));
            $fields += $this->hidden ? [] : ['X-Ratelimit-Retry-After' => $fields['Retry-After']];
        }
        return $fields;
    }

    /** Returns one sentence for people: the rule, its limit, and the time of a retry. */
    public function message(): string
    {
        if ($this->allowed || $this->verdict === 'deny') {
            return $this->allowed ? 'Allowed.' : 'This request is not allowed.';
        }
        $cause = match (true) {
            $this->blocked => 'This caller is blocked.',
            $this->verdict === 'limit' && $this->isNamed() => "Over the limit $this->rule of {$this->quota()}.",
            $this->verdict === 'limit' => 'Too many requests.',
            default => $this->reason === null ? 'The service is at its capacity.' : 'The request could not be judged.',
        };
        return "$cause " . ($this->retryAfter === null ? 'It asks for more than the limit holds: it can never pass.'
            : 'Try again in ' . max(1, self::whole($this->micros[2])) . ' s.');
    }

    /** Returns the body of a refusal, application/problem+json (RFC 9457); its `retry_after` is exact to the millisecond. */
    public function problem(): string
    {
        $json = static fn (string $text): string =>
            json_encode($text, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_LINE_TERMINATORS);
        $type = isset(self::TYPES[$this->status])
            ? 'https://iana.org/assignments/http-problem-types#' . self::TYPES[$this->status] : 'about:blank';
        $members = ['type' => $json($this->blocked ? 'urn:tidegate:problem:blocked' : $type),
            'title' => $json(self::TITLES[$this->status] ?? 'OK'), 'status' => $this->status, 'detail' => $json($this->message())];
        if ($this->verdict === 'limit' && $this->isNamed()) {
            $members += ['violated-policies' => "[{$json($this->rule)}]", 'limit' => sprintf('%.0F', $this->limit),
                'window' => self::thousandths($this->micros[0] ?? 0)];
            if ($this->digest !== null) {
                $members += ($this->domain === null ? [] : ['domain' => $json($this->domain)]) + ['digest' => $json($this->digest)];
            }
        }
        if (!$this->allowed && $this->retryAfter !== null) {
            $members['retry_after'] = self::thousandths($this->micros[2]);
        }
        $members += $this->help === null ? [] : ['help' => $json($this->help)];
        return '{' . implode(',', array_map(static fn (string $name): string => "\"$name\":$members[$name]", array_keys($members))) . '}';
    }

    /** True if a response may name the rule and its limit. */
    private function isNamed(): bool
    {
        return $this->rule !== null && $this->limit !== null && !$this->hidden;
    }

    /** Returns the quota as the rule writes it, if the daemon sent that, else the limit and its window. */
    private function quota(): string
    {
        if (preg_match('~^([0-9]{1,10})/([0-9]{0,10})(ms|s|min|h|day|week|month)$~D', $this->rate ?? '', $found)) {
            [, $number, $periods, $period] = $found;
            [$article, $noun] = self::PERIODS[$period];
            $amount = $number . ' ' . ($number === '1' && $this->unit === 'requests' ? 'request' : $this->unit);
            return $periods === '' || $periods === '1' ? "$amount $article $noun" : "$amount in $periods {$noun}s";
        }
        $window = self::thousandths($this->micros[0] ?? 0);
        return sprintf('%.0F ', $this->limit) . ($window === '0' ? 'at once' : "$this->unit in $window s");
    }

    private static function cut(int|float $n): string
    {
        return (string) (int) min($n, self::DIGITS_MAX);
    }

    /** Rounds microseconds up to seconds. */
    private static function whole(int|float $us): int
    {
        return (int) min(ceil($us / 1e6), self::DIGITS_MAX);
    }

    /** Rounds microseconds up to milliseconds and writes seconds. */
    private static function thousandths(int|float $us): string
    {
        $ms = (int) ceil($us / 1e3);
        return $ms % 1_000 ? rtrim(sprintf('%d.%03d', intdiv($ms, 1_000), $ms % 1_000), '0') : (string) intdiv($ms, 1_000);
    }

    /** Returns a String of RFC 8941. */
    private static function quoted(string $text): string
    {
        return '"' . addcslashes(preg_replace('/[^\x20-\x7e]/u', '?', $text), '"\\') . '"';
    }
}

/** Thrown by `Client::limit` if the work may not start. */
final class Denied extends \RuntimeException
{
    public function __construct(public readonly Decision $decision)
    {
        parent::__construct($decision->message());
    }
}

/** A grant to end. Grants that are left when the PHP request ends are released then. @internal */
final class Lease
{
    private const HELD_MAX = 1_024; // leases of a session
    private const OUTCOMES = ['ok' => 0, 'error' => 1, 'dropped' => 2];
    /** @var array<int, self> */
    private static array $held = [];
    private readonly int $pid;

    public function __construct(private readonly Client $client, public readonly int $number,
        private readonly Connection $connection, private readonly int $id)
    {
        $this->pid = getmypid();
        self::$held[spl_object_id($this)] = $this;
        if (count(self::$held) > self::HELD_MAX) {
            unset(self::$held[array_key_first(self::$held)]);
        }
    }

    public function release(string $outcome): void
    {
        if (isset(self::$held[spl_object_id($this)])) {
            unset(self::$held[spl_object_id($this)]);
            if ($this->pid === getmypid()) { // after a fork the parent's
                $this->client->release($this->number, self::OUTCOMES[$outcome] ?? 1, $this->connection, $this->id);
            }
        }
    }

    public function renew(): bool
    {
        return isset(self::$held[spl_object_id($this)]) && $this->pid === getmypid() && $this->client->renew($this->number);
    }

    /** Releases what is left, at the end of the PHP request. */
    public static function releaseAll(): void
    {
        foreach (self::$held as $lease) {
            $lease->release('dropped');
        }
    }
}

/**
 * A stream to the daemon, one request at a time. A persistent stream outlives the PHP request, this object does not. After
 * any error the stream is closed and never reused. @internal
 */
final class Connection
{
    private const GRACE = 2_000_000; // ns for the reply, if this process used up the deadline before it wrote the request
    private const PATH_BYTES_MAX = 107;
    private const UNPROVED_MAX = 512;
    private const ENOENT = 2, EPERM = 1, EAGAIN = 11, EACCES = 13, ECONNREFUSED = 111;
    private const BUSY = 8;
    private const KEPT_OPEN = [5, 6, 7, 10, 11]; // errors after which the connection stays open

    /** @var ?array<string, resource> streams in the middle of a call; null before the first connection of the PHP request */
    private static ?array $busy = null;
    /** Whether an earlier PHP request of this worker made the stream; then its session is unknown. */
    public readonly bool $inherited;
    /** @var resource */
    private $stream;
    private readonly string $name;
    private readonly int $pid;
    private string $greeting = ''; // HELLO, sent with the first request: saves a round trip
    private bool $leaving = false; // after a GOODBYE
    /** @var list<int> ids of requests whose RELEASE the daemon may not have read */
    private array $unproved = [];
    private array $abandoned = [];

    /** @param ?int $key tells persistent streams apart; null: not persistent */
    public function __construct(private readonly string $path, ?int $key, float $seconds, public readonly int $number, object $info)
    {
        if (self::$busy === null) {
            self::$busy = [];
            register_shutdown_function(self::endRequest(...));
        }
        $key = isset(self::$busy["$path $key"]) || !function_exists('pfsockopen') ? null : $key;
        $stream = $this->connect($key, $seconds);
        [$read, $none] = [[$stream], null];
        // Bytes before a request: a GOODBYE, the end, or the reply to a request that did not wait for it.
        if (ftell($stream) > 0 && stream_select($read, $none, $none, 0) > 0) {
            fclose($stream);
            $stream = $this->connect($key, $seconds);
        }
        $this->pid = getmypid();
        $this->stream = $stream;
        $this->name = $key === null ? '#' . (int) $stream : "$path $key";
        $this->inherited = ftell($stream) > 0; // counts all bytes that were written and read
        if (!$this->inherited) {
            $this->greeting = Wire::frame(Wire::HELLO, 0, ["\x01", Wire::encode($info)]);
        }
    }

    public function isOpen(): bool
    {
        return is_resource($this->stream) && !$this->leaving && $this->pid === getmypid();
    }

    /** True inside a call, from which a signal handler may make another. */
    public function isBusy(): bool
    {
        return isset(self::$busy[$this->name]);
    }

    /** Closes without `shutdown`, which would also end the parent's connection after a fork. */
    public function close(): void
    {
        if (is_resource($this->stream)) {
            fclose($this->stream);
        }
        $this->giveUp($this->unproved);
        $this->unproved = [];
    }

    /** Returns requests to report, once. */
    public function takeAbandoned(): array
    {
        [$abandoned, $this->abandoned] = [$this->abandoned, []];
        return $abandoned;
    }

    /**
     * Writes a request and returns what `$read(elements after the id, connection, id)` makes of its reply; or, as a Fault,
     * an error that keeps the connection open.
     *
     * @throws Fault after which the connection is closed
     */
    public function ask(int $op, array $elements, int $deadline, \Closure $read): mixed
    {
        $id = hrtime(true); // unique on the connection, also among requests of earlier PHP requests
        $kind = $op === Wire::ACQUIRE || $op === Wire::HIT || $op === Wire::PEEK ? Wire::DECISION : Wire::DONE;
        $done = false;
        $isUnread = false;
        self::$busy[$this->name] = $this->stream;
        set_error_handler(static fn (): bool => true); // errors of the stream are no errors of the application
        try {
            $this->write(Wire::frame($op, $id, $elements), $deadline);
            $reply = $this->reply($id, $kind, max($deadline, hrtime(true) + self::GRACE));
            $answer = is_array($reply) ? $read($reply, $this, $id) : $reply;
            $done = true;
            return $answer;
        } catch (Fault $fault) {
            $isUnread = $fault->again || $fault->full;
            throw $fault;
        } finally { // also after an exception of a signal handler
            restore_error_handler();
            unset(self::$busy[$this->name]);
            if (!$done) {
                $this->giveUp($op === Wire::ACQUIRE && !$isUnread ? [$id] : []);
                $this->close();
            } elseif ($this->leaving) {
                $this->close();
            }
        }
    }

    /** Writes a RELEASE; false if it cannot. */
    public function release(array $elements, int $id): bool
    {
        try {
            $this->send(Wire::RELEASE, $elements);
        } catch (Fault) {
            return false;
        }
        $this->unproved = array_slice([...$this->unproved, $id], -self::UNPROVED_MAX);
        return true;
    }

    /** Writes a frame without a reply. */
    public function send(int $op, array $elements): void
    {
        set_error_handler(static fn (): bool => true);
        try {
            $this->write(Wire::frame($op, null, $elements), hrtime(true) + self::GRACE);
        } catch (Fault $fault) {
            $this->close();
            throw $fault;
        } finally {
            restore_error_handler();
        }
    }

    /** Ends what a PHP request leaves that ended inside a call, or before it released its leases. */
    public static function endRequest(): void
    {
        foreach (self::$busy as $stream) {
            is_resource($stream) && fclose($stream);
        }
        self::$busy = [];
        Lease::releaseAll();
    }

    /** @return resource */
    private function connect(?int $key, float $seconds)
    {
        if (strlen($this->path) > self::PATH_BYTES_MAX || str_contains($this->path, "\0")) {
            throw new Fault("no daemon at $this->path: not a path of 107 bytes at most", 'unreachable');
        }
        set_error_handler(static fn (): bool => true);
        try {
            // A port of a Unix socket is only part of the stream's name.
            $stream = $key === null ? stream_socket_client("unix://$this->path", $code, $text, $seconds)
                : pfsockopen("unix://$this->path", -1 - $key, $code, $text, $seconds);
            if ($stream !== false) {
                return $stream;
            }
            if ($code === self::EAGAIN) {
                $text = "the daemon at $this->path takes no connections: it is stopped or overloaded";
                throw new Fault($text, 'unreachable', full: true);
            }
            if ($code === self::EACCES || $code === self::EPERM) {
                $name = static fn (string $kind, int|false $id) => function_exists("posix_get$kind") ? "posix_get$kind"($id)['name'] ?? $id : $id;
                $user = function_exists('posix_geteuid') ? $name('pwuid', posix_geteuid()) : get_current_user();
                $text = "permission denied on $this->path: user $user is not in group {$name('grgid', filegroup($this->path))}";
                throw new Fault($text, 'unreachable');
            }
            $text = "no daemon at $this->path ($text): start it with `tidegate serve`, or set TIDEGATE_SOCKET";
            throw new Fault($text, 'unreachable', absent: $code === self::ENOENT || $code === self::ECONNREFUSED);
        } finally {
            restore_error_handler();
        }
    }

    private function write(string $frame, int $deadline): void
    {
        $bytes = $this->greeting . $frame;
        $us = max(intdiv($deadline - hrtime(true), 1_000), 1_000);
        stream_set_timeout($this->stream, intdiv($us, 1_000_000), $us % 1_000_000);
        $sent = fwrite($this->stream, $bytes);
        if ($sent !== strlen($bytes)) {
            if ($sent > 0 || stream_get_meta_data($this->stream)['timed_out']) {
                throw new Fault('the daemon does not read', 'timeout');
            }
            // A daemon that closed before HELLO has no room.
            throw new Fault('the daemon hung up', 'unreachable', again: $this->greeting === '', full: $this->greeting !== '');
        }
        $this->greeting = '';
    }

    private function reply(int $id, int $kind, int $deadline): array|Fault
    {
        while (true) {
            $size = unpack('N', $this->bytes(4, $deadline))[1];
            if ($size > Wire::FRAME_MAX) {
                throw new Fault("malformed frame of $size bytes");
            }
            $reply = Wire::decode($this->bytes($size, $deadline));
            [$what, $about, $code] = $reply + [null, null, null];
            if ($what === $kind && $about === $id) {
                $this->unproved = [];
                return array_slice($reply, 2);
            }
            if ($what === Wire::GOODBYE) {
                $this->leaving = true;
            } elseif ($this->inherited && is_int($about) && $about > 0 && $about < $id && $what !== Wire::WELCOME) {
                // The late reply to a request that ended before it: its lease has no owner.
                if ($what === Wire::DECISION && is_int($reply[9] ?? null)) {
                    $this->write(Wire::frame(Wire::RELEASE, null, [Wire::encode($reply[9]), "\x02"]), $deadline);
                }
            } elseif ($what !== Wire::WELCOME || $about !== 0 || $code !== 1) {
                $text = substr(json_encode(array_slice($reply, 2), JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES) ?: '', 0, 200);
                $isError = $what === Wire::ERROR && is_int($code);
                $fault = new Fault('the daemon answered ' . (is_int($what) ? $what : '?') . ": $text",
                    $isError ? Fault::REFUSALS[$code] ?? 'protocol' : 'protocol',
                    kept: $isError && $about === $id && in_array($code, self::KEPT_OPEN, true),
                    full: $isError && $code === self::BUSY);
                return $fault->kept ? $fault : throw $fault;
            }
        }
    }

    /** Reads exactly `$size` bytes. After the deadline, reads once more, for 1 ms at most. */
    private function bytes(int $size, int $deadline): string
    {
        for ($data = ''; ($missing = $size - strlen($data)) > 0; $data .= $chunk) {
            $left = $deadline - hrtime(true);
            $us = max(intdiv($left, 1_000), 1_000);
            stream_set_timeout($this->stream, intdiv($us, 1_000_000), $us % 1_000_000);
            $chunk = (string) fread($this->stream, $missing);
            if ($chunk === '' && !stream_get_meta_data($this->stream)['timed_out']) {
                throw new Fault('the daemon hung up', 'unreachable', again: $this->leaving);
            }
            if ($left <= 0 && strlen($chunk) < $missing) {
                throw new Fault('the daemon did not answer in time', 'timeout');
            }
        }
        return $data;
    }

    /** @param list<int> $ids */
    private function giveUp(array $ids): void
    {
        foreach ($this->inherited ? [] : $ids as $id) {
            $this->abandoned[] = [$this->number, $id];
        }
    }
}

/**
 * Small values that outlive the PHP request: with APCu for all workers, else in this process, where most web servers forget
 * them with the request. @internal
 */
final class Memory
{
    private const ENTRIES_MAX = 10_000; // in this process; the least recently written one is evicted
    private static ?bool $isShared = null;
    private static array $own = [];

    public function __construct(private readonly string $prefix)
    {
        self::$isShared ??= function_exists('apcu_enabled') && apcu_enabled();
        self::$own[$prefix] ??= [];
    }

    /** False under servers that forget everything with each request. */
    public static function lasts(): bool
    {
        return (new self(''))::$isShared || in_array(PHP_SAPI, ['cli', 'micro', 'phpdbg'], true);
    }

    /** Failures until the breaker opens. A request that forgets them has one. */
    public static function failuresMax(): int
    {
        return self::lasts() ? Client::FAILURES_MAX : 1;
    }

    public function get(string $name): int|string
    {
        return self::$isShared ? apcu_fetch($this->prefix . $name) ?: 0 : self::$own[$this->prefix][$name] ?? 0;
    }

    /** @param int $seconds until the value is forgotten, if it is shared; 0: never */
    public function put(string $name, int|string $value, int $seconds = 0): void
    {
        if (self::$isShared) {
            apcu_store($this->prefix . $name, $value, $seconds);
            return;
        }
        unset(self::$own[$this->prefix][$name]);
        self::$own[$this->prefix][$name] = $value;
        if (count(self::$own[$this->prefix]) > self::ENTRIES_MAX) {
            unset(self::$own[$this->prefix][array_key_first(self::$own[$this->prefix])]);
        }
    }

    public function add(string $name, int $step): int
    {
        if (self::$isShared) {
            return (int) apcu_inc($this->prefix . $name, $step);
        }
        $this->put($name, $this->get($name) + $step);
        return $this->get($name);
    }

    /** Sets a number if it has the old value still; of several workers one succeeds. */
    public function swap(string $name, int $old, int $new, int $seconds = 0): bool
    {
        if (self::$isShared) {
            return ($old === 0 && apcu_add($this->prefix . $name, $new, $seconds)) || apcu_cas($this->prefix . $name, $old, $new);
        }
        $this->put($name, $new);
        return true;
    }

    /** Returns a number and sets it to 0. */
    public function take(string $name): int
    {
        $value = $this->get($name);
        return $value !== 0 && $this->swap($name, $value, 0) ? $value : 0;
    }

    /** True the first time. */
    public function once(string $name, int $seconds): bool
    {
        if (self::$isShared) {
            return apcu_add($this->prefix . $name, 1, $seconds);
        }
        return $this->get($name) === 0 && $this->swap($name, 0, 1);
    }
}

/** An unsendable request, a failed exchange or an invalid reply. @internal */
final class Fault extends \Exception
{
    /** Errors of the daemon that refuse; all others are failures of the daemon. */
    public const REFUSALS = [6 => 'invalid', 7 => 'quota', 9 => 'forbidden', 11 => 'not_allowed'];

    /**
     * @param string $reason under which it is counted
     * @param bool $again the daemon did not process the request
     * @param bool $full it accepts no further connection
     * @param bool $kept the connection stays open
     * @param bool $absent no process listens
     */
    public function __construct(string $text, public readonly string $reason = 'protocol', public readonly bool $again = false,
        public readonly bool $full = false, public readonly bool $kept = false, public readonly bool $absent = false)
    {
        parent::__construct($text);
    }
}

/** A request as it is sent. @internal */
final readonly class Request
{
    private const ID_ROOM = 11; // array, op and the longest id
    private const DIGESTED = 33; // bytes of a value that is only its digest

    public array $options;

    /**
     * @param list<list<string>> $descriptors each name, value, name, …
     * @param int|array<string, int> $cost
     * @param array<string, mixed> $options null: none
     */
    public function __construct(public int $op, public string $domain, public array $descriptors, public int|array $cost,
        public ?string $priority, array $options)
    {
        $this->options = array_filter($options, static fn (mixed $value): bool => $value !== null);
    }

    /**
     * Encodes the elements after the id, without trailing nils; replaces the longest values by digests until they fit.
     *
     * @param array{missed?: array<string, int>, abandoned?: list<array{int, int}>} $report
     * @return list<string>
     */
    public function elements(array $report = []): array
    {
        $options = $this->options + $report;
        if (isset($report['missed'])) {
            $options['missed'] = (object) $report['missed'];
        }
        if ($this->op === Wire::CHARGE) {
            $rest = $options === [] ? [] : [(object) $options];
        } else {
            $rest = $options === [] ? ($this->priority === null ? [] : [$this->priority]) : [$this->priority, (object) $options];
        }
        $cost = is_array($this->cost) ? (object) $this->cost : $this->cost;
        for ($descriptors = $this->descriptors;;) {
            $elements = array_map(Wire::encode(...), [$this->domain, $descriptors, $cost, ...$rest]);
            if (array_sum(array_map(strlen(...), $elements)) <= Wire::FRAME_MAX - self::ID_ROOM) {
                return $elements;
            }
            [$at, $size] = [null, self::DIGESTED];
            foreach ($descriptors as $i => $one) {
                foreach ($one as $j => $text) {
                    if ($j % 2 === 1 && strlen($text) > $size) {
                        [$at, $size] = [[$i, $j], strlen($text)];
                    }
                }
            }
            $at ?? throw new Fault('a request does not fit into a frame', 'invalid');
            $descriptors[$at[0]][$at[1]] = Wire::digest($descriptors[$at[0]][$at[1]], 0);
        }
    }
}

/** A `bin` of MessagePack. @internal */
final readonly class Bytes
{
    public function __construct(public string $raw)
    {
    }
}

/**
 * MessagePack within the limits of the protocol. A `map` is an object, a `bin` is Bytes, an integer from 2^63 on is read as
 * a float. Uses no socket and no clock. @internal
 */
final class Wire
{
    public const HELLO = 0, ACQUIRE = 1, RELEASE = 2, HIT = 3, PEEK = 4, CHARGE = 5, RENEW = 6, SIGNAL = 7, PING = 8;
    public const WELCOME = 0, DECISION = 1, DONE = 2, ERROR = 3, GOODBYE = 4;
    public const FRAME_MAX = 16_384, PAIRS_MAX = 16;
    private const VALUE_MAX = 1_024, VALUE_KEPT = 960, NAME_MAX = 64, IDEM_MAX = 64, IDEM_KEPT = 30;
    private const DESCRIPTORS_MAX = 8, DEPTH_MAX = 4;

    /** Encodes a value as the shortest MessagePack. */
    public static function encode(mixed $value): string
    {
        if (is_string($value)) {
            $size = strlen($value);
            return match (true) {
                $size < 32 => chr(0xa0 | $size),
                $size < 0x100 => "\xd9" . chr($size),
                default => "\xda" . pack('n', $size),
            } . $value;
        }
        if (is_int($value)) {
            return match (true) {
                $value >= 0x1_0000_0000 => "\xcf" . pack('J', $value),
                $value >= 0x1_0000 => "\xce" . pack('N', $value),
                $value >= 0x100 => "\xcd" . pack('n', $value),
                $value >= 0x80 => "\xcc" . chr($value),
                $value >= -32 => chr($value & 0xff),
                $value >= -0x80 => "\xd0" . chr($value & 0xff),
                $value >= -0x8000 => "\xd1" . pack('n', $value),
                $value >= -0x8000_0000 => "\xd2" . pack('N', $value),
                default => "\xd3" . pack('J', $value),
            };
        }
        if (is_array($value)) {
            $count = count($value);
            return ($count < 16 ? chr(0x90 | $count) : "\xdc" . pack('n', $count)) . implode('', array_map(self::encode(...), $value));
        }
        if ($value instanceof Bytes) {
            return "\xc4" . chr(strlen($value->raw)) . $value->raw; // at most 64
        }
        if (is_object($value)) {
            $entries = (array) $value;
            $count = count($entries);
            $data = $count < 16 ? chr(0x80 | $count) : "\xde" . pack('n', $count);
            foreach ($entries as $name => $entry) {
                $data .= self::encode((string) $name) . self::encode($entry);
            }
            return $data;
        }
        return $value === null ? "\xc0" : ($value ? "\xc3" : "\xc2");
    }

    /**
     * Encodes a frame; `$id` null: the daemon sends no reply.
     *
     * @param list<string> $elements encoded
     */
    public static function frame(int $op, ?int $id, array $elements): string
    {
        $payload = chr(0x92 + count($elements)) . chr($op) . self::encode($id) . implode('', $elements);
        return pack('N', strlen($payload)) . $payload;
    }

    /**
     * Decodes exactly one array.
     *
     * @throws Fault for anything that the protocol forbids
     */
    public static function decode(string $data): array
    {
        $at = 0;
        $message = self::value($data, $at, self::DEPTH_MAX);
        if (!is_array($message) || $at !== strlen($data)) {
            self::malformed();
        }
        return $message;
    }

    public static function isName(string $name): bool
    {
        return strlen($name) <= self::NAME_MAX && preg_match('/^[^\x00-\x1f\x7f-\x{9f}:\/]+$/Du', $name) === 1;
    }

    public static function name(string $name): string
    {
        return self::isName($name) ? $name
            : throw new Fault("a name is text of 1 to 64 bytes without control characters, ':' and '/'", 'invalid');
    }

    /**
     * Checks a cost or, if `$signed`, an amount.
     *
     * @throws \ValueError|\TypeError a programmer's error
     */
    public static function cost(int|array $cost, bool $signed = false): int|array
    {
        foreach (is_array($cost) ? $cost : [$cost] as $n) {
            is_int($n) || throw new \TypeError('a cost is an integer, or integers by unit');
            if ($n < 0 && !$signed) {
                throw new \ValueError('a cost is 0 or more; help: refund with charge(…, -1, of: $decision)');
            }
        }
        return $cost;
    }

    /**
     * Converts attributes to texts.
     *
     * @return list<list<string>>
     * @throws Fault for values that cannot be sent
     */
    public static function describe(iterable $attributes): array
    {
        $isSeveral = is_array($attributes) && $attributes !== [] && array_is_list($attributes) && is_iterable($attributes[0]);
        $descriptors = [];
        foreach ($isSeveral ? $attributes : [$attributes] as $one) {
            $texts = [];
            foreach (is_iterable($one) ? $one : throw new \TypeError('descriptors are arrays') as $name => $value) {
                $text = is_string($value) ? $value : self::text($value, (string) $name);
                if ($text !== '') {
                    $text = self::valid($text);
                    $texts[] = self::name((string) $name);
                    $texts[] = strlen($text) > self::VALUE_MAX ? self::digest($text, self::VALUE_KEPT) : $text;
                }
            }
            count($texts) <= 2 * self::PAIRS_MAX || throw new Fault('more than 16 attributes', 'invalid');
            $descriptors[] = $texts;
        }
        return count($descriptors) <= self::DESCRIPTORS_MAX ? $descriptors : throw new Fault('more than 8 descriptors', 'invalid');
    }

    /** Returns an idempotency key, shortened by a digest above 64 bytes; null if it is absent or empty. */
    public static function idem(?string $idem): string|Bytes|null
    {
        if ($idem === null || $idem === '') {
            return null;
        }
        $isText = preg_match('//u', $idem) === 1;
        $idem = strlen($idem) <= self::IDEM_MAX ? $idem : self::digest($idem, self::IDEM_KEPT, $isText);
        return $isText ? $idem : new Bytes($idem);
    }

    public static function micros(?float $seconds): ?int
    {
        is_finite($seconds ?? 0.0) || throw new \ValueError('queued and maxWait are seconds');
        // 0.00007 * 1e6 is above 70
        return $seconds === null ? null : (int) min(max(ceil(round($seconds * 1e9) / 1e3), 0.0), 2.0 ** 62);
    }

    /** Returns at most `$kept` bytes, up to the end of a character, and the digest of the whole text. */
    public static function digest(string $text, int $kept, bool $isText = true): string
    {
        while ($isText && $kept > 0 && (ord($text[$kept]) & 0xc0) === 0x80) {
            $kept--;
        }
        return substr($text, 0, $kept) . '~' . substr(hash('sha256', $text), 0, 32);
    }

    private static function text(mixed $value, string $name): string
    {
        return match (true) {
            $value === null => '',
            is_bool($value) => $value ? 'true' : 'false',
            is_scalar($value), $value instanceof \Stringable => (string) $value,
            $value instanceof \BackedEnum => (string) $value->value,
            $value instanceof \DateTimeInterface => $value->format(\DateTimeInterface::RFC3339_EXTENDED),
            default => throw new Fault("the attribute $name has no text; help: send its id", 'invalid'),
        };
    }

    /** Replaces bytes that are not UTF-8. */
    private static function valid(string $text): string
    {
        return preg_match('//u', $text) === 1 ? $text
            : htmlspecialchars_decode(htmlspecialchars($text, ENT_NOQUOTES | ENT_SUBSTITUTE, 'UTF-8'), ENT_NOQUOTES);
    }

    /** Reads one value; `$depth`: levels left for nesting. */
    private static function value(string $data, int &$at, int $depth): mixed
    {
        $first = ord($data[$at++] ?? "\xc1");
        return match (true) {
            $first < 0x80 => $first,
            $first < 0x90 => self::entries($data, $at, $first & 15, $depth, true),
            $first < 0xa0 => self::entries($data, $at, $first & 15, $depth, false),
            $first < 0xc0 => self::string($data, $at, $first & 31),
            $first >= 0xe0 => $first - 0x100,
            $first === 0xc0 => null,
            $first === 0xc2, $first === 0xc3 => $first === 0xc3,
            $first >= 0xc4 && $first <= 0xc6 => new Bytes(self::take($data, $at, self::size($data, $at, 1 << $first - 0xc4))),
            $first >= 0xcc && $first <= 0xcf => self::size($data, $at, 1 << $first - 0xcc),
            $first >= 0xd0 && $first <= 0xd2 => self::signed($data, $at, 1 << $first - 0xd0),
            $first === 0xd3 => unpack('J', self::take($data, $at, 8))[1],
            $first >= 0xd9 && $first <= 0xdb => self::string($data, $at, self::size($data, $at, 1 << $first - 0xd9)),
            $first === 0xdc, $first === 0xdd => self::entries($data, $at, self::size($data, $at, 2 << $first - 0xdc), $depth, false),
            $first === 0xde, $first === 0xdf => self::entries($data, $at, self::size($data, $at, 2 << $first - 0xde), $depth, true),
            default => self::malformed(),
        };
    }

    private static function take(string $data, int &$at, int $size): string
    {
        $at += $size;
        return $at <= strlen($data) ? substr($data, $at - $size, $size) : self::malformed();
    }

    private static function size(string $data, int &$at, int $width): int|float
    {
        return hexdec(bin2hex(self::take($data, $at, $width)));
    }

    private static function signed(string $data, int &$at, int $width): int
    {
        $n = self::size($data, $at, $width);
        return $n < 1 << 8 * $width - 1 ? $n : $n - (1 << 8 * $width);
    }

    private static function string(string $data, int &$at, int $size): string
    {
        $text = self::take($data, $at, $size);
        return preg_match('//u', $text) === 1 ? $text : self::malformed();
    }

    private static function entries(string $data, int &$at, int $count, int $depth, bool $isMap): array|object
    {
        if ($depth === 0 || $count > strlen($data) - $at) { // an element takes a byte at least
            self::malformed();
        }
        $values = [];
        while ($count-- > 0) {
            $name = $isMap ? self::value($data, $at, $depth - 1) : count($values);
            if ($isMap && (!is_string($name) || array_key_exists($name, $values))) {
                self::malformed();
            }
            $values[$name] = self::value($data, $at, $depth - 1);
        }
        return $isMap ? (object) $values : $values;
    }

    private static function malformed(): never
    {
        throw new Fault('malformed frame: not exactly one array of valid values');
    }
}
