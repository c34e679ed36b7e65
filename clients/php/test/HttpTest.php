<?php

// The guard and the PSR-15 middleware, against a scripted daemon.

declare(strict_types=1);

use Nyholm\Psr7\Factory\Psr17Factory;
use Nyholm\Psr7\Response;
use Nyholm\Psr7\ServerRequest;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\RequestHandlerInterface;
use Tidegate\Client;
use Tidegate\Decision;
use Tidegate\Guard;
use Tidegate\Middleware;
use Tidegate\Proxies;
use Tidegate\Refusal;
use Tidegate\Seen;
use Tidegate\Wire;

require_once __DIR__ . '/support.php';

final class HttpTest extends Base
{
    private static function handler(Closure $handle): RequestHandlerInterface
    {
        return new class ($handle) implements RequestHandlerInterface {
            public function __construct(private readonly Closure $handle)
            {
            }

            public function handle(ServerRequestInterface $request): ResponseInterface
            {
                return ($this->handle)($request);
            }
        };
    }

    private static function request(string $path = '/a', array $headers = [], array $server = ['REMOTE_ADDR' => '10.0.0.9']): ServerRequest
    {
        return new ServerRequest('GET', "http://example.com$path", $headers, null, '1.1', $server);
    }

    public function testSendsAttributesAddsHeadersAndReleasesByTheStatus(): void
    {
        $daemon = $this->played();
        $middleware = new Middleware($this->client($daemon->path), new Psr17Factory(), 'api', user: static fn ($request) => $request->getHeaderLine('X-User'),
            attributes: ['tier' => 'X-Tier', 'n' => static fn () => 7], descriptors: static fn () => [['org' => 'o1']], cost: static fn () => 2,
            priority: 'critical', trustedProxies: '10.0.0.0/8');
        $headers = ['User-Agent' => 'curl', 'X-User' => 'u1', 'X-Tier' => 'gold', 'X-Forwarded-For' => '1.2.3.4, 192.0.2.1', 'X-Request-Start' => 't=' . (microtime(true) - 1)];
        $handler = self::handler(fn ($request) => new Response($request->getAttribute('tidegate')->allowed ? 404 : 500, ['X-RateLimit-Limit' => 'mine']));
        $response = $middleware->process(self::request('/a/%C3%A9//../b/?q=1', $headers), $handler);
        $message = $daemon->seen(Wire::ACQUIRE)[0];
        $this->assertSame([['method', 'GET', 'path', '/a/b/', 'ip', '192.0.2.1', 'user', 'u1', 'user_agent', 'curl', 'tier', 'gold', 'n', '7'], ['org', 'o1']], $message[3]);
        $this->assertSame([2, 'critical'], [$message[4], $message[5]]);
        $this->assertEqualsWithDelta(1_000_000, $message[6]->queued_us, 900_000);
        $this->assertSame(['mine'], $response->getHeader('X-Ratelimit-Limit'));
        $this->assertSame('"per-user";r=39;t=1', $response->getHeaderLine('RateLimit'));
        $this->assertSame([[2, null, 77, 1]], $daemon->wait(Wire::RELEASE));
        $response = $middleware->process(self::request(), self::handler(static fn () => new Response(302)));
        $this->assertSame([], $response->getHeaders());
        try {
            $middleware->process(self::request(), self::handler(static fn () => throw new DomainException()));
            $this->fail();
        } catch (DomainException) {
        }
        $this->assertSame([1, 0, 2], array_column($daemon->wait(Wire::RELEASE, 3), 3));
    }

    // A rule by path would not limit the other spellings that reach the handler of a route.
    public function testSendsTheRouteOfTheFrameworkOrOfTheApplication(): void
    {
        $slim = new class () {
            public function getPattern(): string
            {
                return '/slim/{id}';
            }
        };
        $mezzio = new class () {
            public function getMatchedRoute(): object
            {
                return new class () {
                    public function getPath(): string
                    {
                        return '/mezzio/:id';
                    }
                };
            }
        };
        $daemon = $this->played();
        $handler = self::handler(static fn () => new Response());
        $known = [self::request()->withAttribute('__route__', $slim), self::request()->withAttribute('Mezzio\Router\RouteResult', $mezzio)];
        foreach ([...$known, self::request()] as $request) {
            (new Middleware($this->client($daemon->path), new Psr17Factory(), 'api'))->process($request, $handler);
        }
        $own = ['route' => static fn (ServerRequestInterface $request): string => '/own'];
        (new Middleware($this->client($daemon->path), new Psr17Factory(), 'api', ...$own))->process($known[0], $handler);
        $sent = array_map(static fn (array $message): array => array_slice($message[3][0], 4, 2), $daemon->seen(Wire::ACQUIRE));
        $this->assertSame([['route', '/slim/{id}'], ['route', '/mezzio/:id'], ['ip', '10.0.0.9'], ['route', '/own']], $sent);
    }

    public function testRefusesWithAProblemOrAnAnswerOfTheApplication(): void
    {
        $daemon = $this->played(static fn (array $m): array => decision($m, LIMIT));
        $client = $this->client($daemon->path);
        $never = self::handler(fn () => $this->fail());
        $response = (new Middleware($client, new Psr17Factory()))->process(self::request(), $never);
        $this->assertSame([429, 'application/problem+json', '1', '40'], [$response->getStatusCode(), $response->getHeaderLine('Content-Type'),
            $response->getHeaderLine('Retry-After'), $response->getHeaderLine('X-RateLimit-Limit')]);
        $body = json_decode((string) $response->getBody(), true);
        $this->assertSame(['per-user'], $body['violated-policies']);
        $this->assertSame((string) strlen((string) $response->getBody()), $response->getHeaderLine('Content-Length'));
        $own = new Middleware($client, new Psr17Factory(), headers: 'none', onRefused: static fn ($request, $decision) => new Refusal(420, ['X-A' => $decision->rule], 'calm'));
        $response = $own->process(self::request(), $never);
        $this->assertSame([420, 'per-user', '1', 'calm'], [$response->getStatusCode(), $response->getHeaderLine('X-A'), $response->getHeaderLine('Retry-After'), (string) $response->getBody()]);
        $this->assertFalse($response->hasHeader('RateLimit'));
        foreach ([static fn () => throw new LogicException('secret'), static fn () => 'no Refusal'] as $onRefused) {
            $usual = (new Middleware($client, new Psr17Factory(), onRefused: $onRefused))->process(self::request(), $never);
            $this->assertSame([429, 'application/problem+json'], [$usual->getStatusCode(), $usual->getHeaderLine('Content-Type')]);
        }
        $this->assertMatchesRegularExpression('/onRefused threw LogicException at .*HttpTest.php:\d+: such refusals get the usual response/', $this->lines[0]);
        $this->assertSame('tidegate: onRefused threw TypeError: such refusals get the usual response', $this->lines[1]);
        $this->assertSame(2, $client->stats()['missed']['callback']);
    }

    public function testChecksRequestsWithoutTheFunctionsThatThrew(): void
    {
        $daemon = $this->played(static fn (array $m): array => decision($m, LIMIT));
        $client = $this->client($daemon->path);
        $throws = static fn () => throw new LogicException('secret');
        $options = ['user', 'attributes', 'descriptors', 'cost', 'priority', 'exempt', 'onFailure'];
        foreach ($options as $option) {
            foreach ([1, 2] as $_) {
                $d = (new Guard($client, ...[$option => $throws], ...($option === 'cost' ? [] : ['cost' => 2])))->judge(Seen::server(['REQUEST_URI' => '/']));
                $this->assertSame(['limit', null, false], [$d->verdict, $d->reason, $d->degraded], $option);
                $message = $daemon->seen(Wire::ACQUIRE)[2 * array_search($option, $options, true) + $_ - 1];
                $this->assertSame([[['path', '/']], $option === 'cost' ? 1 : 2, null], [$message[3], $message[4], $message[5]], $option);
                $this->assertSame(1, $message[6]->missed->callback, $option); // reported with the request
            }
        }
        $guard = new Guard($client, attributes: ['a' => $throws, 'b' => static fn () => 7]);
        $guard->judge(Seen::server(['REQUEST_URI' => '/']));
        $this->assertSame([['path', '/', 'b', '7']], $daemon->seen(Wire::ACQUIRE)[14][3]);
        array_shift($this->lines); // of requests without an address
        foreach ([...$options, 'attributes.a'] as $i => $name) {
            $this->assertMatchesRegularExpression("/^tidegate: $name threw LogicException at .*HttpTest.php:\d+: such requests are checked without it$/", $this->lines[$i]);
        }
        $this->assertCount(8, $this->lines);
        $this->assertSame(15, $client->stats()['missed']['callback']);
    }

    public function testSendsNoAttributesOfAFunctionThatReturnsNoMapping(): void
    {
        $daemon = $this->played();
        $client = $this->client($daemon->path);
        foreach (['abc', ['abc'], 7, (object) ['a' => 1], null, [], new ArrayIterator(['a' => 1])] as $returned) {
            $d = (new Guard($client, attributes: static fn () => $returned))->judge(Seen::server(['REQUEST_URI' => '/']));
            $this->assertSame(['allow', null], [$d->verdict, $d->reason]);
        }
        $sent = array_column($daemon->seen(Wire::ACQUIRE), 3);
        $this->assertSame([...array_fill(0, 6, [['path', '/']]), [['path', '/', 'a', '1']]], $sent);
        $said = static fn (string $kind): string => "tidegate: attributes returned $kind, not values by name: such requests are checked without it";
        $this->assertSame(array_map($said, ['string', 'array', 'int', 'stdClass']), array_slice($this->lines, 1));
        $this->assertSame(4, $client->stats()['missed']['callback']);
    }

    public function testAppliesOnFailureOnlyIfTheDaemonDoesNotAnswer(): void
    {
        $throws = static fn () => throw new LogicException('secret');
        $client = $this->client(folder() . '/s');
        $d = (new Guard($client, user: $throws, onFailure: 'refuse'))->judge(Seen::server([]));
        $this->assertSame([503, 'unreachable'], [$d->status, $d->reason]);
        $this->assertStringEndsWith('; requests with onFailure refuse get status 503, others are not limited', $this->lines[2]);
        $this->assertSame(['callback' => 1, 'unreachable' => 1], $client->stats()['missed']);
    }

    public function testSkipsExemptRequestsAndRefusesAnInvalidCost(): void
    {
        $client = $this->client($this->played()->path);
        $this->assertNull((new Guard($client, exempt: static fn () => true))->judge(Seen::server([])));
        $this->assertSame('invalid', (new Guard($client, cost: static fn () => -1))->judge(Seen::server([]))->reason);
    }

    public function testRefusesByPathWithoutTheDaemonAndObserves(): void
    {
        $seen = [];
        $client = $this->client(folder() . '/s');
        $guard = new Guard($client, onFailure: [['/login', 'refuse'], ['/', 'allow']], instrument: static function (Decision $d, float $s) use (&$seen): void {
            $seen[] = $d->status;
        });
        foreach (['/login', '//login/', '/%6cogin?x', '/a/../login', '/a'] as $url) {
            $guard->judge(Seen::server(['REQUEST_URI' => $url]));
        }
        $this->assertSame([503, 503, 503, 503, 200], $seen);
    }

    public function testThrowsForInvalidOptions(): void
    {
        $client = new Client(enabled: false);
        $many = array_fill_keys(array_map(static fn (int $i): string => "a$i", range(1, 11)), 'X-A');
        $wrong = [['domain' => 'a/b'], ['attributes' => ['a:b' => 'X-A']], ['attributes' => $many], ['cost' => -1], ['onFailure' => 'deny'],
            ['onFailure' => [['/', 'deny']]], ['headers' => 'all'], ['trustedProxies' => -1], ['trustedProxies' => '10.0.0.0/33'], ['trustedProxies' => ['proxy']], ['fallback' => '20']];
        foreach ($wrong as $options) {
            try {
                new Guard($client, ...$options);
                $this->fail(json_encode($options));
            } catch (ValueError) {
                $this->addToAssertionCount(1);
            }
        }
    }

    public static function callers(): array
    {
        return [
            ['10.0.0.1', '1.1.1.1, 2.2.2.2', [], '10.0.0.1'],
            ['10.0.0.1', '1.1.1.1, 2.2.2.2', '10.0.0.0/8', '2.2.2.2'],
            ['10.0.0.1', '1.1.1.1, 10.9.9.9', ['10.0.0.0/8'], '1.1.1.1'],
            ['3.3.3.3', '1.1.1.1', '10.0.0.0/8', '3.3.3.3'],
            ['10.0.0.1', '1.1.1.1, 2.2.2.2', 1, '2.2.2.2'],
            ['10.0.0.1', '1.1.1.1, 2.2.2.2', 2, '1.1.1.1'],
            ['10.0.0.1', '1.1.1.1', 5, '1.1.1.1'],
            ['10.0.0.1', '1.1.1.1', 0, '10.0.0.1'],
            ['unix:', '1.1.1.1', '10.0.0.0/8', '1.1.1.1'],
            ['', '', '10.0.0.0/8', ''],
            ['10.0.0.1', '1.1.1.1, forged', '10.0.0.0/8', '10.0.0.1'],
            ['10.0.0.1', '1.1.1.1:80', '10.0.0.0/8', '1.1.1.1'],
            ['10.0.0.1', '"[2001:DB8:0::1]:80"', '10.0.0.0/8', '2001:db8::1'],
            ['::ffff:10.0.0.1', '1.1.1.1', '10.0.0.0/8', '1.1.1.1'],
            ['::ffff:1.1.1.1', '', [], '1.1.1.1'],
            ['2001:db8::1', '1.1.1.1', '2001:db8::/33', '1.1.1.1'],
            ['2001:db8:8000::1', '1.1.1.1', '2001:db8::/33', '2001:db8:8000::1'],
        ];
    }

    /** @dataProvider callers */
    public function testFindsTheCallerBehindProxies(string $peer, string $forwarded, mixed $proxies, string $caller): void
    {
        $this->assertSame($caller, (new Proxies($proxies))->caller($peer, $forwarded));
    }

    public function testReadsTheStartOfARequestOnlyFromProxiesOrTheWebServer(): void
    {
        $now = 1_700_000_010.0;
        foreach (['t=1700000000.5' => 9.5, '1700000000500' => 9.5, '1700000000500000' => 9.5, '1700000011' => null, '1600000000' => null, 'x' => null] as $text => $seconds) {
            $this->assertEqualsWithDelta($seconds, Proxies::queued((string) $text, $now), 1e-3, (string) $text);
        }
        $daemon = $this->played();
        $client = $this->client($daemon->path);
        $start = 't=' . (microtime(true) - 1);
        foreach ([['HTTP_X_REQUEST_START' => $start], ['X_REQUEST_START' => $start]] as $server) {
            (new Guard($client))->judge(Seen::server($server));
        }
        $this->assertSame([false, true], array_map(static fn (array $m): bool => isset($m[6]), $daemon->seen(Wire::ACQUIRE)));
    }

    public function testLogsOnceWhyCallersHaveNoAddressOrThatOfTheirProxy(): void
    {
        $none = 'tidegate: requests over a Unix socket have no `ip`: rules by ip do not judge them; '
            . 'help: set trustedProxies, and let the proxy send X-Forwarded-For';
        $theirs = 'tidegate: X-Forwarded-For is present but trustedProxies is not set: callers are counted by their proxy';
        $forwarded = ['HTTP_X_FORWARDED_FOR' => '1.1.1.1'];
        foreach ([[[], [], [$none]], [$forwarded, [], [$none]], [$forwarded + ['REMOTE_ADDR' => 'unix:'], [], [$none]],
            [$forwarded, ['trustedProxies' => 1], []], [$forwarded + ['REMOTE_ADDR' => '10.0.0.1'], [], [$theirs]]] as [$server, $options, $lines]) {
            $this->lines = [];
            $guard = new Guard($this->client($this->played()->path), ...$options);
            $guard->judge(Seen::server($server));
            $guard->judge(Seen::server($server));
            $this->assertSame($lines, $this->lines);
        }
    }

    public function testNamesAnOptionAndItsValueThatIsNoneOfTheWords(): void
    {
        foreach ([['onFailure', 'deny', 'allow or refuse'], ['headers', 'all', 'both or draft or legacy or none']] as [$name, $value, $words]) {
            try {
                new Guard(new Client(enabled: false), ...[$name => $value]);
                $this->fail($name);
            } catch (ValueError $error) {
                $this->assertSame("$name is $words, not \"$value\"", $error->getMessage());
            }
        }
        $this->expectExceptionMessage('onFailure is allow or refuse, not "deny"');
        (new Client(enabled: false))->hit('api', onFailure: 'deny');
    }

    public function testProtectsPlainPhpAndReleasesByTheStatusWhenTheRequestEnds(): void
    {
        $daemon = $this->played(static fn (array $m, string $mode): array => decision($m, $mode === 'limit' ? LIMIT : ALLOW, $mode === 'limit' ? null : 77));
        $code = sprintf('require %s; $_SERVER += ["REQUEST_METHOD" => "GET", "REQUEST_URI" => "/a"];', var_export(realpath(__DIR__ . '/../Guard.php'), true))
            . sprintf('(new Tidegate\Guard(new Tidegate\Client(%s, timeout: 9.0), user: fn () => "u1"))->protect(); echo "application"; exit;', var_export($daemon->path, true));
        $this->assertSame('application', exec(PHP_BINARY . ' -r ' . escapeshellarg($code)));
        $this->assertSame([[2, null, 77, 0]], $daemon->wait(Wire::RELEASE));
        $this->assertContains('u1', $daemon->seen(Wire::ACQUIRE)[0][3][0]);
        $daemon->mode('limit');
        $body = exec(PHP_BINARY . ' -r ' . escapeshellarg($code));
        $this->assertSame(429, json_decode($body)->status);
        $this->assertStringEndsWith('}', $body);
    }
}
