<?php

// Client of tidegate, the rate limiting daemon of this host, without extensions. It keeps one connection per worker process.
// No call throws because of the daemon, and none outlasts its deadline.

declare(strict_types=1);

namespace Tidegate;

use function array_chunk, array_pad, array_slice, chr, count, getmypid, hrtime, implode, in_array, intdiv, is_array,
    is_float, is_int, is_object, is_string, max, min, preg_match, spl_object_id, strlen;

require_once __DIR__ . '/Protocol.php';

/** Asks the daemon of this host. Making a client does no I/O; the first request connects. */
final class Client
{
    public const VERSION = '0.1.0';
    public const FAILURES_MAX = 3; // until the breaker opens
    public const PAUSE_MIN = 100_000_000, PAUSE_MAX = 2_000_000_000; // ns; jitter takes up to a half
    private const TIMEOUT_MS_MAX = 10_000; // of the environment
    private const ABANDONED_MAX = 512, LOGGED_MAX = 100;
    private const REPORTED_MAX = Wire::FRAME_MAX >> 1; // bytes of a request that a report may join
    private const MISSES = ['unreachable', 'timeout', 'protocol', 'breaker', 'callback'];
    private const WELL = 1, FAILING = 2; // the last logged state; 0: none
    private const SHED_A_SECOND = [2, null, null, null, null, null, 1_000_000];

    /** Deadline of a whole call in seconds. */
    public readonly float $timeout;
    private readonly bool $enabled;
    private readonly string $off; // TIDEGATE_DISABLE
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
    private bool $refuses = false; // whether a request had onFailure refuse

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
        $this->timeout = $timeout ?? $this->timeoutOf((string) getenv('TIDEGATE_TIMEOUT_MS'));
        if (!($this->timeout > 0 && $this->timeout < 2 ** 31) || $slots < 0 || $slots >= 2 ** 32) {
            throw new \ValueError('the timeout is above 0, and slots are 0 or more');
        }
        Wire::isName($pool) || throw new \ValueError("the pool $pool is not a name");
        $this->off = (string) getenv('TIDEGATE_DISABLE');
        $this->enabled = $enabled && in_array($this->off, ['', '0'], true);
        $this->fallback = $fallback === null ? null : self::fallback($fallback);
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

    /** @return array{missed: array<string, int>, refused: array<string, int>, connections: int, breakerOpen: bool} */
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

    /**
     * Logs a line; `$once`: only the first time of this text, or of the key `$once`; with APCu once an hour of all workers.
     *
     * @internal
     */
    public function log(string $text, bool|string $once = false): void
    {
        $memory = $this->memory();
        if ($once !== false) {
            $memory->once('log', 3_600) && $memory->put('logged', 0);
            if (!$memory->once('log.' . md5($once === true ? $text : $once), 3_600) || $memory->add('logged', 1) > self::LOGGED_MAX) {
                return;
            }
        }
        try {
            $this->logger === null ? error_log("tidegate: $text") : ($this->logger)("tidegate: $text");
        } catch (\Throwable) {
            // an application's logger must not fail its requests
        }
    }

    /** Converts an option `fallback`. @internal */
    public static function fallback(Fallback|string|array $given): Fallback
    {
        require_once __DIR__ . '/Fallback.php';
        return $given instanceof Fallback ? $given : new Fallback($given);
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

    /** Returns the seconds of TIDEGATE_TIMEOUT_MS; the default, with a line of the log, for another value. */
    private function timeoutOf(string $text): float
    {
        if (preg_match('/^[0-9]{1,5}([.][0-9]{1,6})?$/D', $text) && $text > 0 && $text <= self::TIMEOUT_MS_MAX) {
            return $text / 1e3;
        }
        $about = 'TIDEGATE_TIMEOUT_MS is "' . substr($text, 0, 40) . '", not above 0 and up to ' . self::TIMEOUT_MS_MAX;
        $text === '' || $this->log("$about: the timeout is 20 ms", true);
        return 0.020;
    }

    private function judge(int $op, string $domain, iterable $attributes = [], int|array $cost = 1,
        ?string $priority = null, ?string $idem = null, ?float $queued = null, ?float $maxWait = null,
        string $onFailure = 'allow', ?Fallback $fallback = null): Decision
    {
        $began = hrtime(true);
        Wire::checkWord('onFailure', $onFailure, 'allow', 'refuse');
        $this->refuses = $this->refuses || $onFailure === 'refuse';
        $cost = Wire::cost($cost);
        if (!$this->enabled) {
            $isOff = !in_array($this->off, ['', '0'], true);
            $isOff && $this->log('TIDEGATE_DISABLE is "' . substr($this->off, 0, 40) . '": nothing is limited', true);
            return new Decision([0], 'disabled');
        }
        $options = $idem === null && $queued === null && $maxWait === null ? []
            : ['idem' => Wire::idem($idem), 'queued_us' => Wire::micros($queued), 'max_wait_us' => Wire::micros($maxWait)];
        $priority = $priority !== null && Wire::isName($priority) ? $priority : null; // an invalid priority counts as none
        try {
            $request = new Request($op, Wire::name($domain), Wire::describe($attributes), $cost, $priority, $options);
            $decision = $this->decide($request, $onFailure, $fallback ?? $this->fallback, $began);
        } catch (Fault $fault) {
            $decision = $this->refuse($fault);
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
            $answer->notes === [] || $this->logUnmatched($request, $answer);
            $fallback?->remember($request, $answer);
            return $answer;
        }
        if (in_array($answer->reason, Fault::REFUSALS, true)) {
            throw $answer;
        }
        $missed = $this->degrade($answer->reason, $onFailure);
        return $fallback?->decide($request) ?? $missed;
    }

    /** Logs, once for each domain, that it does not exist or that none of its rules matched; no value of an attribute. */
    private function logUnmatched(Request $request, Decision $decision): void
    {
        $domain = $request->domain;
        if (in_array(['unmatched', 'domain'], $decision->notes, true)) {
            $this->log("the rules have no domain \"$domain\"; its requests are not limited", true);
        } elseif (in_array(['unmatched', 'rule'], $decision->notes, true)) {
            $names = array_map(static fn (array $texts): array => array_column(array_chunk($texts, 2), 0), $request->descriptors);
            $names = implode(', ', array_unique(array_merge(...$names)));
            $about = $names === '' ? 'a request without attributes' : "a request with the attributes $names";
            $why = "it is not limited; `tidegate why $domain …` says why";
            $this->log("no rule of the domain \"$domain\" matches $about: $why", "no rule of $domain");
        }
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
        if (!$unreported && $this->abandoned === [] || strlen(implode('', $elements)) >= self::REPORTED_MAX
            || $memory->get('until') > hrtime(true)) {
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
        // Streams that outlive the request differ by process, after a fork, and by the contents of HELLO.
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
        $limits = match (true) {
            $this->fallback !== null => 'are limited by the fallback',
            $this->refuses => 'with onFailure refuse get status 503, others are not limited',
            default => 'are not limited',
        };
        $this->log($failing ? "{$fault->getMessage()}; requests $limits" : 'the daemon answers again');
    }
}

/** The answer to a request. Times are in seconds; absent fields are null. */
final readonly class Decision
{
    private const VERDICTS = ['allow' => 200, 'limit' => 429, 'shed' => 503, 'wait' => 200, 'deny' => 403];
    private const NAMES = ['allow', 'limit', 'shed', 'wait', 'deny'];
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
    public Bytes|string|int|null $refundKey;
    /** Microseconds of the window, of the reset and of the retry. */
    private array $micros;

    /**
     * @param list<mixed> $elements of the reply, from the verdict on
     * @param ?string $reason of a decision without the daemon, or of a refusal by the client
     * @throws Fault if the elements are malformed
     * @internal
     */
    public function __construct(array $elements, public ?string $reason = null, private ?Lease $held = null,
        ?Request $request = null)
    {
        [$verdict, $rule, $limit, $window, $remaining, $reset, $retry, $lease, $notes, $all, $extra] = count($elements) < 11
            ? array_pad($elements, 11, null) : $elements;
        $known = is_int($verdict) ? self::NAMES[$verdict] ?? null : null;
        foreach ([$limit, $window, $remaining, $reset, $retry, $lease] as $n) {
            $known = $n === null || ((is_int($n) || is_float($n)) && $n >= 0) ? $known : null;
        }
        foreach (['help' => '', 'unit' => '', 'rate' => '', 'digest' => '', 'hide' => true, 'blocked' => true] as $name => $kind) {
            $known = !is_object($extra) || gettype($extra->$name ?? $kind) === gettype($kind) ? $known : null;
        }
        $isNotes = is_array($notes ?? []) && count($notes ?? []) % 2 === 0 && array_filter($notes ?? [], is_string(...)) === ($notes ?? []);
        if ($known === null || !$isNotes || !is_string($rule ?? '') || !is_array($all ?? [])
            || !($extra === null || is_object($extra))) {
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
        $this->notes = $notes === null ? [] : array_chunk($notes, 2);
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
            $members += ['violated-policies' => "[{$json($this->rule)}]", 'limit' => self::exact($this->limit),
                'window' => self::thousandths($this->micros[0] ?? 0)];
            if ($this->digest !== null) {
                $members += $this->domain === null ? [] : ['domain' => $json($this->domain)];
                $members += ['digest' => $json($this->digest)];
            }
        }
        if (!$this->allowed && $this->retryAfter !== null) {
            $members['retry_after'] = self::thousandths($this->micros[2]);
        }
        $members += $this->help === null ? [] : ['help' => $json($this->help)];
        $pairs = array_map(static fn (string $name): string => "\"$name\":$members[$name]", array_keys($members));
        return '{' . implode(',', $pairs) . '}';
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
        return self::exact($this->limit) . ' ' . ($window === '0' ? 'at once' : "$this->unit in $window s");
    }

    private static function exact(int|float $n): string
    {
        return is_int($n) ? (string) $n : sprintf('%.0F', $n);
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
        self::isShared();
        self::$own[$prefix] ??= [];
    }

    private static function isShared(): bool
    {
        return self::$isShared ??= function_exists('apcu_enabled') && apcu_enabled();
    }

    /** False under servers that forget everything with each request. */
    public static function lasts(): bool
    {
        return self::isShared() || in_array(PHP_SAPI, ['cli', 'micro', 'phpdbg'], true);
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
