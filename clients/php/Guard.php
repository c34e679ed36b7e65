<?php

// Limits HTTP requests: the attributes of a request, the options of the check, the response to a refusal. For plain PHP by
// itself; `Middleware` uses it for PSR-15.

declare(strict_types=1);

namespace Tidegate;

require_once __DIR__ . '/Tidegate.php';

/** A request as a guard sees it; `$request` is passed to the application's functions. */
final readonly class Seen
{
    /**
     * @param string $url with the query, as the caller sent it
     * @param string $peer address of the other end of the connection
     * @param \Closure $header from a header's name to its value or ''
     * @param ?string $started the time of an X-Request-Start that only the web server can have set
     * @param ?string $route the pattern that the framework matched
     */
    public function __construct(public mixed $request, public string $method, public string $url, public string $peer,
        public \Closure $header, public ?string $started = null, public ?string $route = null)
    {
    }

    /** Makes one of $_SERVER or the like. `fastcgi_param X_REQUEST_START` is set by the web server alone. */
    public static function server(array $server, mixed $request = null): self
    {
        $header = static fn (string $name): string => (string) ($server['HTTP_' . strtr(strtoupper($name), '-', '_')] ?? '');
        return new self($request ?? $server, (string) ($server['REQUEST_METHOD'] ?? ''), (string) ($server['REQUEST_URI'] ?? '/'),
            (string) ($server['REMOTE_ADDR'] ?? ''), $header, $server['X_REQUEST_START'] ?? null);
    }

    /** Returns the path: decoded once, without query, dot segments and repeated slashes. */
    public function path(): string
    {
        $path = rawurldecode(preg_replace(['~^[a-z][a-z0-9+.-]*://[^/?#]*~i', '~[?#].*$~s'], '', $this->url));
        $kept = [];
        foreach (explode('/', $path) as $segment) {
            if ($segment === '..') {
                array_pop($kept);
            } elseif ($segment !== '' && $segment !== '.') {
                $kept[] = $segment;
            }
        }
        return '/' . implode('/', $kept) . ($kept !== [] && preg_match('~/\.{0,2}$~D', $path) ? '/' : '');
    }
}

/** A response to a refusal. */
final readonly class Refusal
{
    /** @param array<string, string> $headers */
    public function __construct(public int $status, public array $headers = [], public string $body = '')
    {
    }
}

/** Checks HTTP requests, with the options of every middleware and language. */
final class Guard
{
    private const ALWAYS = ['method', 'path', 'user', 'ip', 'user_agent', 'route'];
    // Prefixes of the headers that a style omits. Every refusal has Retry-After.
    private const LEFT_OUT = ['both' => [], 'draft' => ['X-'], 'legacy' => ['RateLimit'], 'none' => ['X-', 'RateLimit']];

    private const NO_ADDRESS = 'requests over a Unix socket have no `ip`: rules by ip do not judge them; '
        . 'help: set trustedProxies, and let the proxy send X-Forwarded-For';
    private const UNTRUSTED = 'X-Forwarded-For is present but trustedProxies is not set: callers are counted by their proxy';

    private readonly ?Fallback $fallback;
    private readonly Proxies $proxies;

    /**
     * @param ?\Closure $user from the request to the caller's name, by your server's knowledge
     * @param \Closure|array<string, string|\Closure> $attributes further ones: a function to an array, or names with header
     *     names or functions
     * @param ?\Closure $descriptors to a list of further descriptors
     * @param int|array<string, int>|\Closure $cost
     * @param string|\Closure|null $priority never from an end user's header
     * @param ?\Closure $exempt to true: no check
     * @param ?\Closure $outcome from the status to ok, error or dropped; else *ok* below 400, *error* from 400 on
     * @param ?\Closure $onRefused from request and decision to a Refusal; null: application/problem+json
     * @param string|\Closure|list<array{string, string}> $onFailure allow or refuse, a function, or pairs of path prefix
     *     and allow or refuse
     * @param int|string|list<string> $trustedProxies networks whose X-Forwarded-For and X-Request-Start count, or the number
     *     of proxies before the web server
     * @param string $headers draft, legacy, both or none
     * @param ?\Closure $instrument called with each Decision and its time in seconds
     * @param Fallback|string|array<string, string>|null $fallback replaces the client's
     * @param ?\Closure $route to the pattern of the route that handles the request; null: that of `Seen`
     */
    public function __construct(
        private readonly Client $client,
        private readonly string $domain = 'web',
        private readonly ?\Closure $user = null,
        private readonly \Closure|array $attributes = [],
        private readonly ?\Closure $descriptors = null,
        private readonly int|array|\Closure $cost = 1,
        private readonly string|\Closure|null $priority = null,
        private readonly ?\Closure $exempt = null,
        private readonly ?\Closure $outcome = null,
        private readonly ?\Closure $onRefused = null,
        private readonly string|array|\Closure $onFailure = 'allow',
        int|string|array $trustedProxies = [],
        private readonly string $headers = 'both',
        private readonly ?\Closure $instrument = null,
        Fallback|string|array|null $fallback = null,
        private readonly ?\Closure $route = null,
    ) {
        $actions = is_array($onFailure) ? array_column($onFailure, 1) : (is_string($onFailure) ? [$onFailure] : []);
        array_map(static fn (string $action) => Wire::checkWord('onFailure', $action, 'allow', 'refuse'), $actions);
        Wire::checkWord('headers', $headers, ...array_keys(self::LEFT_OUT));
        $names = is_array($attributes) ? array_map(strval(...), array_keys($attributes)) : [];
        foreach ([$domain, ...$names] as $name) {
            Wire::isName($name) || throw new \ValueError("$name is not a name of a domain or attribute");
        }
        if (count(array_unique([...$names, ...self::ALWAYS])) > Wire::PAIRS_MAX) {
            throw new \ValueError('more than 16 attributes, of which 6 are always sent');
        }
        $cost instanceof \Closure || Wire::cost($cost);
        $this->fallback = $fallback === null ? null : Client::fallback($fallback);
        $this->proxies = new Proxies($trustedProxies);
    }

    /**
     * Checks the current request of plain PHP: sends the response to a refusal and exits, or adds the limit headers to the
     * response and ends the lease with the request. Returns the decision; null if the request is exempt.
     */
    public function protect(): ?Decision
    {
        $seen = Seen::server($_SERVER);
        $decision = $this->judge($seen);
        if ($decision === null) {
            return null;
        }
        if (!$decision->allowed) {
            $refusal = $this->refusal($seen, $decision);
            http_response_code($refusal->status);
            foreach ($refusal->headers as $name => $value) {
                header("$name: $value");
            }
            echo $seen->method === 'HEAD' ? '' : $refusal->body;
            exit;
        }
        header_register_callback(function () use ($decision): void {
            $there = array_map(static fn (string $line): string => strstr($line, ':', true), headers_list());
            foreach ($this->fields($decision, http_response_code() ?: 200, $there) as $name => $value) {
                header("$name: $value");
            }
        });
        register_shutdown_function(fn () => $decision->release(
            connection_aborted() ? 'dropped' : $this->outcome(http_response_code() ?: 200)));
        $decision->sleep();
        return $decision;
    }

    /** Returns the decision; null if the request is exempt. */
    public function judge(Seen $seen): ?Decision
    {
        $began = hrtime(true);
        $decision = $this->decide($seen);
        if ($decision !== null && $this->instrument !== null) {
            try {
                ($this->instrument)($decision, (hrtime(true) - $began) / 1e9);
            } catch (\Throwable $error) {
                $this->client->log('instrument threw ' . $error::class, true);
            }
        }
        return $decision;
    }

    /** Returns the response to a refusal; the usual one if `onRefused` throws. */
    public function refusal(Seen $seen, Decision $decision): Refusal
    {
        try {
            $own = (fn (): ?Refusal => $this->onRefused === null ? null : ($this->onRefused)($seen->request, $decision))();
        } catch (\Throwable $error) {
            $this->failed('onRefused', $error, 'refusals get the usual response');
            $own = null;
        }
        $body = $decision->problem();
        $own ??= new Refusal($decision->status, ['Content-Type' => 'application/problem+json',
            'Content-Length' => (string) strlen($body), 'Cache-Control' => 'no-store'], $body);
        $fields = $this->fields($decision, $own->status, array_keys($own->headers));
        return new Refusal($own->status, $own->headers + $fields, $own->body);
    }

    /**
     * Returns the limit headers to add to a response with headers named `$there`.
     *
     * @return array<string, string>
     */
    public function fields(Decision $decision, int $status, array $there): array
    {
        if ($status >= 300 && $status < 400) { // clients would delay following a redirect
            return [];
        }
        $there = array_map(strtolower(...), $there);
        $fields = [];
        foreach ($decision->headers() as $name => $value) {
            $isLeftOut = array_filter(self::LEFT_OUT[$this->headers], static fn (string $prefix): bool => str_starts_with($name, $prefix));
            if ($isLeftOut === [] && !in_array(strtolower($name), $there, true)) {
                $fields[$name] = $value;
            }
        }
        return $fields;
    }

    public function outcome(int $status): string
    {
        $usual = $status < 400 ? 'ok' : 'error';
        try {
            return $this->outcome === null ? $usual : ($this->outcome)($status) ?? $usual;
        } catch (\Throwable $error) {
            $this->client->log('outcome threw ' . $error::class . ': the status decides', true);
            return $usual;
        }
    }

    private function decide(Seen $seen): ?Decision
    {
        if ($this->value('exempt', $this->exempt, $seen)) {
            return null;
        }
        $path = $seen->path();
        $route = $this->value('route', $this->route, $seen) ?? $seen->route;
        $attributes = ['method' => $seen->method, 'path' => $path, 'route' => $route, 'ip' => $this->address($seen),
            'user' => $this->value('user', $this->user, $seen), 'user_agent' => ($seen->header)('User-Agent')];
        $attributes = array_replace($attributes, $this->attributes($seen));
        $descriptors = $this->descriptors === null ? [] : fn ($request): array => [...($this->descriptors)($request) ?? []];
        $further = $this->value('descriptors', $descriptors, $seen, []);
        $given = ['cost' => $this->value('cost', $this->cost, $seen, 1), 'queued' => $this->queued($seen),
            'priority' => $this->value('priority', $this->priority, $seen),
            'onFailure' => self::action($this->value('onFailure', $this->onFailure, $seen, 'allow'), $path)];
        try {
            $all = $further === [] ? $attributes : [$attributes, ...$further];
            return $this->client->acquire($this->domain, $all, ...$given, fallback: $this->fallback);
        } catch (\ValueError | \TypeError $error) { // a function returned something invalid
            return $this->client->refuse(new Fault($error->getMessage(), 'invalid'));
        }
    }

    private function attributes(Seen $seen): array
    {
        if ($this->attributes instanceof \Closure) {
            $mapping = fn ($request): array => self::mapping(($this->attributes)($request));
            return $this->value('attributes', $mapping, $seen, []);
        }
        $attributes = [];
        foreach ($this->attributes as $name => $source) {
            $attributes[$name] = is_string($source) ? ($seen->header)($source) : $this->value("attributes.$name", $source, $seen);
        }
        return $attributes;
    }

    /** Returns values by name. A list has none. */
    private static function mapping(mixed $given): array
    {
        $all = is_iterable($given ?? []) ? iterator_to_array($given ?? []) : null;
        return $all === [] || ($all !== null && !array_is_list($all)) ? $all
            : throw new WrongResult(get_debug_type($given) . ', not values by name');
    }

    /** Returns an option or, of a function, its result; `$otherwise` if it throws. */
    private function value(string $name, mixed $option, Seen $seen, mixed $otherwise = null): mixed
    {
        try {
            return $option instanceof \Closure ? $option($seen->request) : $option;
        } catch (\Throwable $error) {
            $this->failed($name, $error);
            return $otherwise;
        }
    }

    /**
     * Counts and logs a function of the application that threw: with its place, but without its message, which may contain
     * personal data.
     */
    private function failed(string $name, \Throwable $error, string $then = 'requests are checked without it'): void
    {
        $place = $error->getFile() === __FILE__ ? '' : " at {$error->getFile()}:{$error->getLine()}"; // here: a wrong result
        $failed = $error instanceof WrongResult ? "returned {$error->getMessage()}" : 'threw ' . $error::class . $place;
        $this->client->log("$name $failed: such $then", true);
        $this->client->degrade('callback'); // counts it; the next request reports it
    }

    private static function action(mixed $given, string $path): mixed
    {
        foreach (is_array($given) ? $given : [] as [$start, $action]) {
            if (str_starts_with($path, $start)) {
                return $action;
            }
        }
        return is_array($given) ? 'allow' : $given;
    }

    private function address(Seen $seen): string
    {
        $forwarded = ($seen->header)('X-Forwarded-For');
        $address = $this->proxies->caller($seen->peer, $forwarded);
        if ($address === '') {
            $this->client->log(self::NO_ADDRESS, true);
        } elseif ($forwarded !== '' && $this->proxies->isNone()) {
            $this->client->log(self::UNTRUSTED, true);
        }
        return $address;
    }

    private function queued(Seen $seen): ?float
    {
        $started = $seen->started ?? ($this->proxies->trusts($seen->peer) ? ($seen->header)('X-Request-Start') : '');
        return $started === '' ? null : Proxies::queued($started, microtime(true));
    }
}

/** Of a function's result; the message is its type and the wanted one, never a value. @internal */
final class WrongResult extends \TypeError
{
}

/** The proxies whose headers count. @internal */
final readonly class Proxies
{
    private const QUEUED_MAX = 60.0; // seconds; a longer time means that the proxy's clock differs

    /** Number of proxies, or networks as packed address and bits. */
    private int|array $trusted;

    public function __construct(int|string|array $given)
    {
        if (is_int($given)) {
            $given >= 0 || throw new \ValueError('the number of proxies is 0 or more');
            $this->trusted = $given;
            return;
        }
        $networks = [];
        foreach ((array) $given as $network) {
            [$address, $bits] = explode('/', $network, 2) + [1 => null];
            $packed = self::packed($address);
            $longest = 8 * strlen($packed ?? '');
            if ($packed === null || !preg_match('/^\d{1,3}$/D', $bits ?? '0') || (int) $bits > $longest) {
                throw new \ValueError("the proxy $network is not a network; help: write it like 10.0.0.0/8");
            }
            $networks[] = [$packed, (int) ($bits ?? $longest)];
        }
        $this->trusted = $networks;
    }

    /** True without the option. */
    public function isNone(): bool
    {
        return $this->trusted === [];
    }

    /** Returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged. */
    public function caller(string $peer, string $forwarded): string
    {
        $nearest = self::plain($peer);
        if ($forwarded === '' || $this->isNone()) {
            return $nearest;
        }
        $hops = [...array_map(self::withoutPort(...), explode(',', $forwarded)), $peer];
        if (is_int($this->trusted)) {
            $hops = [$hops[max(0, count($hops) - 1 - $this->trusted)]];
        }
        foreach (array_reverse($hops) as $i => $hop) {
            if (self::packed($hop) === null) {
                if ($i === 0 && count($hops) > 1) {
                    continue; // a Unix socket: the peer is a proxy on this host
                }
                return $nearest;
            }
            $nearest = self::plain($hop);
            if (is_int($this->trusted) || !$this->isIn($nearest)) {
                break;
            }
        }
        return $nearest;
    }

    /** Whether the peer is a trusted proxy; a Unix socket's peer has no address and is trusted if any proxy is. */
    public function trusts(string $peer): bool
    {
        if (is_int($this->trusted)) {
            return $this->trusted > 0;
        }
        return self::packed($peer) === null ? !$this->isNone() : $this->isIn(self::plain($peer));
    }

    /**
     * Returns the seconds since an X-Request-Start: Unix time, optionally after "t=", in seconds, milliseconds or
     * microseconds, recognized by their size. Null for times in the future or more than 60 s ago.
     */
    public static function queued(string $text, float $now): ?float
    {
        if (!preg_match('/^(?:t=)?(\d{1,20}(?:\.\d{1,9})?)$/D', trim($text), $found)) {
            return null;
        }
        $started = (float) $found[1];
        $waited = $now - $started / ($started >= 1e14 ? 1e6 : ($started >= 1e11 ? 1e3 : 1));
        return $waited >= 0 && $waited <= self::QUEUED_MAX ? $waited : null;
    }

    private function isIn(string $address): bool
    {
        $packed = self::packed($address);
        foreach ($this->trusted as [$network, $bits]) {
            [$whole, $mask] = [intdiv($bits, 8), chr(0xff00 >> $bits % 8 & 0xff)];
            if (strlen($network) === strlen($packed) && strncmp($network, $packed, $whole) === 0
                && ($bits % 8 === 0 || ($network[$whole] & $mask) === ($packed[$whole] & $mask))) {
                return true;
            }
        }
        return false;
    }

    /** Returns the shortest form of an address; of an IPv4-mapped IPv6 address the IPv4 address; '' for no address. */
    private static function plain(string $address): string
    {
        $packed = self::packed($address);
        if ($packed === null) {
            return '';
        }
        $isMapped = strlen($packed) === 16 && str_starts_with($packed, str_repeat("\0", 10) . "\xff\xff");
        return inet_ntop($isMapped ? substr($packed, 12) : $packed);
    }

    private static function packed(string $address): ?string
    {
        $address = explode('%', $address, 2)[0]; // without the zone of a link-local one: fe80::1%eth0
        return filter_var($address, FILTER_VALIDATE_IP) === false ? null : inet_pton($address);
    }

    private static function withoutPort(string $hop): string
    {
        $hop = trim(trim($hop), '"');
        if (str_starts_with($hop, '[')) {
            return explode(']', substr($hop, 1))[0];
        }
        return substr_count($hop, ':') === 1 ? explode(':', $hop)[0] : $hop;
    }
}
