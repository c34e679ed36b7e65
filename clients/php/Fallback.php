<?php

// The limit while the daemon does not answer: token buckets, with APCu of all workers, else of this process.

declare(strict_types=1);

namespace Tidegate;

/** Local limits, a token bucket for each domain and set of attributes. */
final class Fallback
{
    private const NUMBER_MAX = 2 ** 32 - 1, PERIOD_MAX = 366 * 86_400; // seconds
    private const UNITS = ['ms' => 0.001, 's' => 1, 'min' => 60, 'h' => 3_600, 'day' => 86_400, 'week' => 604_800,
        'month' => 2_592_000];
    private const RATE = '~^(\d{1,10})/(\d{0,10})(ms|s|min|h|day|week|month)(?: burst (\d{1,10}))?$~D';
    private const ERROR_MAX = 1e-6; // tokens lost to rounding
    private const FORGET = 3_600; // seconds, and ten windows, until APCu may drop a bucket, which is full then
    private const TRIES = 16; // while other workers change the same bucket

    /** @var array<string, array{float, int}> nanoseconds for a token, and burst, by rule */
    private array $quotas = [];
    private readonly bool $byRule;
    private readonly Memory $memory;

    /**
     * @param string|array<string, string> $rates a rate such as "20/s", "5/15min" or "100/h burst 200", or rates by rule
     *     name; "*" is for all other requests
     */
    public function __construct(string|array $rates)
    {
        if (!Memory::lasts()) {
            throw new \LogicException('a fallback needs APCu here: ' . PHP_SAPI . ' forgets its buckets with each request');
        }
        foreach (is_string($rates) ? ['*' => $rates] : $rates as $rule => $text) {
            preg_match(self::RATE, $text, $found);
            [, $number, $periods, $unit, $burst] = $found + ['', '0', '', '', null];
            $period = (int) ($periods ?: 1) * (self::UNITS[$unit] ?? 0);
            $burst = (int) ($burst ?? $number);
            if (min($number, $burst, $period) <= 0 || max($number, $burst) > self::NUMBER_MAX || $period > self::PERIOD_MAX) {
                throw new \ValueError("the fallback $text is not a rate; help: write it like 20/s, 5/15min or 100/h burst 200");
            }
            $this->quotas[$rule] = [$period * 1e9 / $number, $burst];
        }
        $this->quotas !== [] || throw new \ValueError('a fallback names no rule; help: write ["*" => "20/s"]');
        $this->byRule = array_keys($this->quotas) !== ['*'];
        $this->memory = new Memory('tidegate.fallback.');
    }

    /** Remembers the binding rule, if entries are by rule. @internal */
    public function remember(Request $request, Decision $decision): void
    {
        if ($this->byRule && $decision->rule !== null && $decision->limit !== null) {
            $key = $this->names($request);
            if ($this->memory->get($key) !== $decision->rule) {
                $this->memory->put($key, $decision->rule);
            }
        }
    }

    /** Charges the request's bucket; null if no entry applies. @internal */
    public function decide(Request $request): ?Decision
    {
        $entry = $this->entry($request);
        if (!isset($this->quotas[$entry])) {
            return null;
        }
        [$interval, $burst] = $this->quotas[$entry];
        $cost = is_array($request->cost) ? $request->cost['requests'] ?? 1 : $request->cost;
        $key = $this->key($entry, $request);
        for ($tries = self::TRIES;;) {
            $before = $this->memory->get($key); // when the bucket is full
            $now = hrtime(true);
            $tokens = $burst - max($before - $now, 0) / $interval;
            $isAllowed = $cost <= $tokens + self::ERROR_MAX;
            if (!$isAllowed || $request->op === Wire::PEEK) {
                break;
            }
            $after = (int) (max($before, $now) + $cost * $interval);
            if ($this->memory->swap($key, $before, $after, (int) ($burst * $interval / 1e8) + self::FORGET)) {
                $tokens = max($tokens - $cost, 0.0);
                break;
            }
            $isAllowed = false;
            if (--$tries === 0) {
                break;
            }
        }
        $micros = static fn (float $ns): int => (int) ceil($ns / 1e3 - 1e-3);
        $retry = $cost > $burst ? null : ($isAllowed ? 0 : $micros(max(($cost - $tokens) * $interval, 0.0)));
        $left = (int) floor($tokens + self::ERROR_MAX);
        $reset = $left >= $burst ? 0 : $micros(($left + 1 - $tokens) * $interval);
        $verdict = $isAllowed ? 0 : 1;
        return new Decision([$verdict, null, $burst, $micros($burst * $interval), max($left, 0), $reset, $retry], 'fallback');
    }

    private function entry(Request $request): string
    {
        $rule = $this->byRule ? $this->memory->get($this->names($request)) : 0;
        foreach (is_string($rule) ? ["$request->domain/$rule", $rule] : [] as $name) {
            if (isset($this->quotas[$name])) {
                return $name;
            }
        }
        return '*';
    }

    /** Returns a key of the domain and the names of all attributes that are sent. */
    private function names(Request $request): string
    {
        $names = [];
        foreach ($request->descriptors as $one) {
            foreach (array_chunk($one, 2) as [$name]) {
                $names[$name] = true;
            }
        }
        ksort($names, SORT_STRING);
        return 'rule.' . hash('sha256', serialize([$request->domain, array_keys($names)]));
    }

    /** Returns the key of a bucket: entry, quota, domain, and each descriptor as a set of attributes. */
    private function key(string $entry, Request $request): string
    {
        $sets = [];
        foreach ($request->descriptors as $one) {
            $set = array_map(serialize(...), array_chunk($one, 2));
            sort($set);
            $sets[] = serialize($set);
        }
        sort($sets);
        return 'bucket.' . hash('sha256', serialize([$entry, $this->quotas[$entry], $request->domain, $sets]));
    }
}
