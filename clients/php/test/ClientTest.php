<?php

// The client against a scripted daemon: requests, replies, deadlines, and decisions without the daemon.

declare(strict_types=1);

use Tidegate\Bytes;
use Tidegate\Client;
use Tidegate\Decision;
use Tidegate\Denied;
use Tidegate\Fallback;
use Tidegate\Wire;

require_once __DIR__ . '/support.php';

final class ClientTest extends Base
{
    /** Returns the reasons of some hits. */
    private static function hits(Client $client, int $count = 1): array
    {
        return array_map(static fn (): ?string => $client->hit('api', ['user' => 'u1'])->reason, range(1, $count));
    }

    public function testSendsRequestsAsTheProtocolHasThem(): void
    {
        $daemon = $this->played(static fn (array $m): array => $m[0] === Wire::CHARGE ? [2, $m[1], true] : decision($m));
        $client = $this->client($daemon->path, pool: 'web', slots: 8);
        $d = $client->acquire('api', ['user' => 'u1', 'none' => null, 'empty' => '', 'n' => 7, 'on' => true]);
        $this->assertSame(['per-user', 39, 2.0, 0.05, false, true], [$d->rule, $d->remaining, $d->window, $d->resetAfter, $d->degraded, $d->allowed]);
        $client->peek('api', [['user' => 'u1'], ['org' => 'o1']], 3, 'post', queued: 0.5, maxWait: 0.00007);
        $this->assertTrue($client->charge('api', ['user' => 'u1'], ['tokens' => -5], 'k', 7));
        $this->assertTrue($client->check());
        $client->signal('lag', 0.5);
        $client->hit('api');
        [$hello] = $daemon->seen(Wire::HELLO);
        $this->assertSame(['client', 'session', 'pid', 'pool', 'slots', 'connection'], array_keys((array) $hello[3]));
        $this->assertInstanceOf(Bytes::class, $hello[3]->session);
        $this->assertSame([16, 'web', 8, getmypid(), 1], [strlen($hello[3]->session->raw), $hello[3]->pool, $hello[3]->slots, $hello[3]->pid, $hello[3]->connection]);
        $of = fn (int $op): array => array_slice($daemon->seen($op)[0], 2);
        $this->assertSame(['api', [['user', 'u1', 'n', '7', 'on', 'true']], 1], $of(Wire::ACQUIRE));
        $this->assertEquals(['api', [['user', 'u1'], ['org', 'o1']], 3, 'post', (object) ['queued_us' => 500_000, 'max_wait_us' => 70]], $of(Wire::PEEK));
        $this->assertEquals(['api', [['user', 'u1']], (object) ['tokens' => -5], (object) ['idem' => 'k', 'of' => 7]], $of(Wire::CHARGE));
        $this->assertSame([[7, null, 'web', 'lag', 500]], $daemon->seen(Wire::SIGNAL));
        $this->assertSame(['api', [[]], 1], $of(Wire::HIT));
        $this->assertCount(1, $daemon->seen(Wire::HELLO));
    }

    public static function pauses(): array
    {
        return ['in time' => [100, PATIENT], 'for longer than the deadline' => [20_000, 0.05]];
    }

    /** @dataProvider pauses */
    public function testReadsRepliesByteByByte(int $pause, float $timeout): void
    {
        $path = folder() . '/s';
        $server = stream_socket_server("unix://$path");
        $pid = pcntl_fork();
        if ($pid === 0) {
            $stream = stream_socket_accept($server);
            fread($stream, 4 + unpack('N', fread($stream, 4))[1] - 4); // HELLO
            $message = Wire::decode(fread($stream, unpack('N', fread($stream, 4))[1]));
            foreach (str_split(frame([0, 0, 1, (object) []]) . frame(decision($message, [0, 'Grüße-→', 40, 2, 3, 4, 0]))) as $byte) {
                @fwrite($stream, $byte);
                usleep($pause);
            }
            posix_kill(getmypid(), SIGKILL);
        }
        $began = hrtime(true);
        $d = $this->client($path, timeout: $timeout)->hit('api');
        $this->assertSame($timeout === PATIENT ? ['Grüße-→', null] : [null, 'timeout'], [$d->rule, $d->reason]);
        $all = 2 * $pause * strlen(frame(decision([1, hrtime(true)]))) / 1e6;
        $this->assertTrue($timeout === PATIENT || (hrtime(true) - $began) / 1e9 < $all);
        posix_kill($pid, SIGKILL);
        pcntl_waitpid($pid, $status);
    }

    public function testRunsWorkUnderALeaseAndReleasesItWithItsOutcome(): void
    {
        $daemon = $this->played(static fn (array $m, string $mode): array => match ($mode) {
            'allow' => $m[0] === Wire::ACQUIRE ? decision($m, ALLOW, 76 + $m[4]) : [2, $m[1], true],
            'limit' => decision($m, LIMIT),
            'wait' => decision($m, [3, 'queue', 4, 5, 0, 0, 30_000], 90),
        });
        $client = $this->client($daemon->path);
        $this->assertSame('per-user', $client->limit('api', ['job' => 'a'], static fn (Decision $d): string => $d->rule));
        try {
            $client->limit('api', ['job' => 'b'], static fn () => throw new DomainException('work'), cost: 2);
            $this->fail();
        } catch (DomainException) {
        }
        $d = $client->acquire('api', cost: 3);
        $this->assertSame(79, $d->lease);
        $this->assertTrue($d->renew());
        $d->release('error');
        $d->release();
        $this->assertFalse($d->renew());
        $releases = fn (int $count): array => array_map(static fn (array $m): array => [$m[2], $m[3]], $daemon->wait(Wire::RELEASE, $count));
        $this->assertSame([[77, 0], [78, 2], [79, 1]], $releases(3));
        $daemon->mode('limit');
        try {
            $client->limit('api', [], fn () => $this->fail());
            $this->fail();
        } catch (Denied $denied) {
            $this->assertSame(429, $denied->decision->status);
            $this->assertStringContainsString('per-user', $denied->getMessage());
        }
        $daemon->mode('wait');
        $began = hrtime(true);
        $this->assertGreaterThanOrEqual($began + 30_000_000, $client->limit('api', [], static fn (): int => hrtime(true)));
        $this->assertSame([90, 0], $releases(4)[3]);
    }

    public function testThrowsForAProgrammersErrorAndRefusesOtherInvalidInputWithoutIo(): void
    {
        $client = $this->client(folder() . '/s');
        $errors = [
            [ValueError::class, fn () => $client->hit('api', cost: -1)],
            [ValueError::class, fn () => $client->hit('api', cost: ['tokens' => -1])],
            [TypeError::class, fn () => $client->hit('api', cost: 1.5)],
            [TypeError::class, fn () => $client->hit('api', cost: ['tokens' => 0.5])],
            [TypeError::class, fn () => $client->hit('api', 'user')],
            [ValueError::class, fn () => $client->hit('api', onFailure: 'deny')],
            [ValueError::class, fn () => $client->hit('api', queued: NAN)],
            [TypeError::class, fn () => $client->charge('api', [], 1.5)],
            [ValueError::class, fn () => $client->signal('lag', NAN)],
            [ValueError::class, fn () => new Client(timeout: 0.0)],
            [ValueError::class, fn () => new Client(slots: -1)],
            [ValueError::class, fn () => new Client(pool: 'a/b')],
            [ValueError::class, fn () => new Client(fallback: '20')],
            [ValueError::class, fn () => new Client(fallback: [])],
        ];
        foreach ($errors as $i => [$class, $call]) {
            try {
                $call();
                $this->fail("$i");
            } catch (Error $error) {
                $this->assertInstanceOf($class, $error, "$i: $error");
            }
        }
        $many = array_fill_keys(array_map(static fn (int $i): string => "a$i", range(1, 17)), 1);
        $invalid = [['a/b'], [''], ['api', $many], ['api', ['a:b' => 1]], ['api', ['user' => new stdClass()]], ['api', ['user' => ['a']]],
            ['api', array_fill(0, 9, ['a' => 1])], ["a\x7f"], ["a\u{85}"], [str_repeat('a', 65)]];
        foreach ($invalid as $call) {
            $d = $client->hit(...$call);
            $this->assertSame([false, 'shed', 503, 'invalid', false, 1.0], [$d->allowed, $d->verdict, $d->status, $d->reason, $d->degraded, $d->retryAfter]);
        }
        $this->assertSame(['missed' => [], 'refused' => ['invalid' => count($invalid)], 'connections' => 0, 'breakerOpen' => false], $client->stats());
        $this->assertFalse($client->charge('api', [], -1, of: $client->hit('a/b')));
        $this->assertCount(1, preg_grep('/attribute user has no text; help/', $this->lines));
    }

    public function testDigestsLongValuesAndKeysAndSendsNoInvalidPriority(): void
    {
        $daemon = $this->played();
        $client = $this->client($daemon->path);
        $client->hit('api', ['a' => str_repeat('é', 600), 'b' => "\xff<&>"], 2 ** 40, 'a/b', str_repeat('k', 65));
        [, , , [[, $value, , $valid]], $cost, $priority, $options] = $daemon->seen(Wire::HIT)[0];
        $this->assertMatchesRegularExpression('/^é{480}~[0-9a-f]{32}$/u', $value);
        $this->assertSame("\u{fffd}<&>", $valid);
        $this->assertMatchesRegularExpression('/^k{30}~[0-9a-f]{32}$/', $options->idem);
        $this->assertSame([2 ** 40, null], [$cost, $priority]);
        $wide = array_fill(0, 8, array_fill_keys(['a', 'b', 'c', 'd'], str_repeat('v', 1_000)));
        $this->assertNull($client->hit('api', $wide)->reason);
        $this->assertNotSame([], preg_grep('/^~[0-9a-f]{32}$/', array_merge(...$daemon->seen(Wire::HIT)[1][3])));
    }

    public function testRefusesWhenTheDaemonRefusesTheClient(): void
    {
        $daemon = $this->played(static fn (array $m, string $mode): array => [3, $m[1], (int) $mode, 'no']);
        $client = $this->client($daemon->path, fallback: '1/s');
        foreach ([6 => 'invalid', 7 => 'quota', 11 => 'not_allowed', 9 => 'forbidden'] as $code => $reason) {
            $daemon->mode((string) $code);
            for ($i = 0; $i < 2; $i++) {
                $d = $client->acquire('api');
                $this->assertSame([$reason, false, 503, false], [$d->reason, $d->allowed, $d->status, $d->degraded]);
            }
            $this->assertSame(2, $client->stats()['refused'][$reason]);
        }
        $this->assertCount(4, $this->lines);
        $this->assertFalse($client->stats()['breakerOpen']);
    }

    public function testOpensTheBreakerAfterThreeFailuresAndProbesOncePerPause(): void
    {
        $daemon = $this->played();
        $daemon->mode('mute');
        $client = $this->client($daemon->path, timeout: 0.01);
        $this->assertSame(['timeout', 'timeout', 'timeout', ...array_fill(0, 5, 'breaker')], self::hits($client, 8));
        $this->assertTrue($client->stats()['breakerOpen']);
        $this->assertFalse($client->check());
        $pauses = [];
        for ($began = hrtime(true); count($pauses) < 3; usleep(1_000)) {
            if (self::hits($client) === ['timeout']) {
                $pauses[] = (hrtime(true) - $began) / 1e6;
                $began = hrtime(true);
                $this->assertSame(['breaker'], self::hits($client));
            }
        }
        foreach ($pauses as $i => $pause) {
            $this->assertGreaterThanOrEqual(50 * 2 ** $i - 5, $pause);
        }
        $this->assertCount(3, $daemon->wait(Wire::PING, 3));
        $this->assertCount(3, $daemon->seen(Wire::HIT));
        $daemon->mode('allow');
        until(fn (): bool => self::hits($client) === [null]);
        $this->assertFalse($client->stats()['breakerOpen']);
        $this->assertMatchesRegularExpression('/did not answer in time; requests are not limited/', $this->lines[0]);
        $this->assertSame('tidegate: the daemon answers again', end($this->lines));
        $this->assertCount(2, $this->lines);
    }

    public function testStopsAtOnceWhenNothingListensAndLogsTheRemedy(): void
    {
        $client = $this->client(folder() . '/s', fallback: ['*' => '2/h']);
        $this->assertSame(['fallback'], self::hits($client));
        $this->assertTrue($client->stats()['breakerOpen']);
        [$second, $third] = [$client->hit('api', ['user' => 'u1']), $client->hit('api', ['user' => 'u1'])];
        $this->assertSame([true, 0, false, 429, true, 2], [$second->allowed, $second->remaining, $third->allowed, $third->status, $third->degraded, $third->limit]);
        $this->assertEqualsWithDelta(1_800, $third->retryAfter, 100);
        $this->assertTrue($client->hit('api', ['user' => 'u2'])->allowed);
        $this->assertNull($client->hit('api', ['user' => 'u2'], 3)->retryAfter);
        $this->assertSame(1, $client->stats()['missed']['unreachable']);
        $this->assertCount(1, $this->lines);
        $this->assertMatchesRegularExpression('/no daemon at .*No such file.*: start it with `tidegate serve`, or set TIDEGATE_SOCKET; requests are limited by the fallback/', $this->lines[0]);
        $this->assertSame(['unreachable'], self::hits($this->client('/' . str_repeat('x', 120))));
    }

    public function testExplainsAForbiddenSocket(): void
    {
        if (posix_geteuid() !== 0) {
            $this->markTestSkipped('needs root, to become another user');
        }
        $path = folder() . '/s';
        $server = stream_socket_server("unix://$path");
        chmod(dirname($path), 0755);
        chmod($path, 0660);
        $code = sprintf('posix_setegid(65534); posix_seteuid(65534); require %s; (new Tidegate\Client(%s, persistent: false))->hit("api");',
            var_export(realpath(__DIR__ . '/../Tidegate.php'), true), var_export($path, true));
        exec(PHP_BINARY . ' -d error_log= -r ' . escapeshellarg($code) . ' 2>&1', $lines);
        $this->assertMatchesRegularExpression('/permission denied on .*: user nobody is not in group root; requests are not limited/', implode("\n", $lines));
        fclose($server);
    }

    public function testAppliesAFallbackByTheRuleThatBoundBefore(): void
    {
        $daemon = $this->played();
        $client = $this->client($daemon->path, fallback: ['per-user' => '1/h', '*' => '100/s']);
        self::hits($client);
        $daemon->stop();
        $of = static fn (array $attributes): ?int => $client->hit('api', $attributes)->limit;
        $this->assertSame([1, 100], [$of(['user' => 'u2']), $of(['org' => 'o'])]);
    }

    public function testReportsReleasesThatTheDaemonMayNotHaveRead(): void
    {
        $daemon = $this->played();
        $client = $this->client($daemon->path);
        [$first, $second] = [$client->acquire('api'), $client->acquire('api')];
        $daemon->signal(SIGSTOP);
        $first->release(); // written, and not read
        $daemon->stop();
        $this->assertSame(['unreachable'], self::hits($client));
        $second->release(); // while the breaker is open
        $daemon->start();
        until(fn (): bool => self::hits($client) === [null]);
        $ids = array_column($daemon->seen(Wire::ACQUIRE), 1);
        $options = array_values(array_filter(array_map(static fn (array $m) => $m[6] ?? null, $daemon->seen(Wire::HIT))))[0];
        sort($options->abandoned);
        $this->assertSame([[1, $ids[0]], [1, $ids[1]]], $options->abandoned);
        $sessions = array_map(static fn (array $m): string => $m[3]->session->raw, $daemon->seen(Wire::HELLO));
        $this->assertCount(1, array_unique($sessions));
    }

    public function testSendsARequestAgainAfterGoodbyeAndReconnectsWhenClosedWhileIdle(): void
    {
        $drains = 1;
        $daemon = $this->played(static function (array $m) use (&$drains): array|object {
            $goodbye = frame([4, null, 'draining']);
            return match (true) {
                $m[4] === 9 && $drains-- > 0 => (object) ['last' => $goodbye],
                $m[4] === 8 => (object) ['last' => frame(decision($m)) . $goodbye],
                default => decision($m),
            };
        });
        $client = $this->client($daemon->path);
        $this->assertNull($client->hit('api', cost: 9)->reason); // not processed before GOODBYE
        $this->assertCount(2, $daemon->seen(Wire::HELLO));
        $this->assertNull($client->hit('api', cost: 8)->reason); // the next one finds GOODBYE
        $this->assertNull($client->hit('api')->reason);
        $this->assertCount(3, $daemon->seen(Wire::HELLO));
        $daemon->stop();
        $daemon->start();
        $this->assertNull($client->hit('api')->reason); // the idle connection is closed: no failure
        $this->assertSame([], $client->stats()['missed']);
        $this->assertSame([], $this->lines);
    }

    public function testRetriesABusyDaemonUntilTheDeadline(): void
    {
        $daemon = $this->played(static fn (array $m, string $mode) => $mode === 'allow' ? frame([3, null, 8, 'busy']) : decision($m));
        $client = $this->client($daemon->path, timeout: 0.05);
        $this->assertSame(['protocol'], self::hits($client));
        $this->assertGreaterThan(2, count($daemon->seen(Wire::HELLO)));
        $this->assertSame([null], self::hits(tap($this->client($daemon->path), fn () => $daemon->mode('well'))));
    }

    public function testConnectsToNoFullBacklogForLongerThanTheDeadline(): void
    {
        $path = folder() . '/s';
        $server = stream_socket_server("unix://$path", context: stream_context_create(['socket' => ['backlog' => 0]]));
        $held = stream_socket_client("unix://$path");
        $client = $this->client($path, timeout: 0.03);
        $began = hrtime(true);
        $this->assertSame(['unreachable'], self::hits($client));
        $this->assertLessThan(1.0, (hrtime(true) - $began) / 1e9);
        $this->assertMatchesRegularExpression('/takes no connections: it is stopped or overloaded/', $this->lines[0]);
        fclose($held);
        fclose($server);
    }

    public function testAStreamOutlivesTheClientThatMadeIt(): void
    {
        $daemon = $this->played();
        foreach (range(1, 5) as $i) {
            $this->assertSame([null], self::hits($this->client($daemon->path)));
        }
        $this->assertCount(1, $daemon->seen(Wire::HELLO));
        $this->assertSame([null], self::hits($this->client($daemon->path, pool: 'jobs'))); // has a HELLO of its own
        $this->assertSame([null], self::hits($this->client($daemon->path, persistent: false)));
        $this->assertCount(3, $daemon->seen(Wire::HELLO));
    }

    /** Makes the stream of a client as an earlier PHP request of this worker, and writes a request whose reply it did not read. */
    private static function leave(string $path): void
    {
        $stream = pfsockopen("unix://$path", -1 - crc32(getmypid() . '/default/0'));
        fwrite($stream, Wire::frame(Wire::HELLO, 0, ["\x01"]));
        fread($stream, 8_192);
        fwrite($stream, Wire::frame(Wire::ACQUIRE, hrtime(true), array_map(Wire::encode(...), ['api', [], 1])));
    }

    public function testNeverReadsTheReplyToAnEarlierRequestOfTheWorker(): void
    {
        $daemon = $this->played(static fn (array $m): array => decision($m, [0, $m[0] === 1 ? 'stale' : 'mine', 1, 1, 1, 1, 0], $m[0] === 1 ? 5 : null));
        self::leave($daemon->path);
        $daemon->wait(Wire::ACQUIRE);
        usleep(20_000);
        $this->assertSame('mine', $this->client($daemon->path)->hit('api')->rule);
        $this->assertCount(2, $daemon->seen(Wire::HELLO)); // the stream had bytes: it was closed
        $this->assertSame([], $this->lines);
    }

    public function testSkipsALateReplyToAnEarlierRequestAndReleasesItsLease(): void
    {
        $daemon = $this->played(static function (array $m): array {
            $m[0] === 1 && usleep(500_000);
            return decision($m, [0, $m[0] === 1 ? 'stale' : 'mine', 1, 1, 1, 1, 0], $m[0] === 1 ? 5 : null);
        });
        self::leave($daemon->path);
        $this->assertSame('mine', $this->client($daemon->path)->hit('api')->rule);
        $this->assertCount(1, $daemon->seen(Wire::HELLO));
        $this->assertSame([[2, null, 5, 2]], $daemon->wait(Wire::RELEASE));
    }

    private static function handler(): mixed
    {
        $handler = set_error_handler(null);
        restore_error_handler();
        return $handler;
    }

    public function testLetsExceptionsOfTheApplicationPassAndDropsTheConnection(): void
    {
        $daemon = $this->played(static function (array $m, string $mode): array {
            $mode === 'allow' && usleep(100_000);
            return decision($m);
        });
        $client = $this->client($daemon->path, timeout: 0.3);
        $handler = self::handler();
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, static fn () => throw new DomainException('soft time limit'));
        $parent = getmypid();
        if (pcntl_fork() === 0) {
            usleep(30_000);
            posix_kill($parent, SIGUSR1);
            posix_kill(getmypid(), SIGKILL);
        }
        try {
            $client->acquire('api');
            $this->fail();
        } catch (DomainException) {
        } finally {
            pcntl_wait($status, WNOHANG);
            pcntl_signal(SIGUSR1, SIG_DFL);
        }
        $this->assertSame(0, $client->stats()['connections']);
        $daemon->mode('fast');
        until(fn (): bool => self::hits($client) === [null]);
        $options = array_values(array_filter(array_map(static fn (array $m) => $m[6] ?? null, $daemon->seen(Wire::HIT))))[0];
        $this->assertSame([[1, $daemon->seen(Wire::ACQUIRE)[0][1]]], $options->abandoned);
        $this->assertSame($handler, self::handler()); // the client's handler of errors is gone
    }

    public function testRefusesValuesAndNamesThatCannotBeConverted(): void
    {
        $odd = new class () {
            public function __toString(): string
            {
                throw new DomainException('secret');
            }
        };
        $named = static fn (mixed $name): Generator => yield $name => 'u1';
        $client = $this->client($this->played()->path);
        foreach ([['user' => $odd], $named(['user']), $named(new stdClass()), $named(null)] as $attributes) {
            $this->assertSame('invalid', $client->hit('api', $attributes)->reason);
        }
        $read = 0;
        $many = (static function () use (&$read): Generator {
            for (; $read < 1_000; $read++) {
                yield "a$read" => 'v';
            }
        })();
        $this->assertSame('invalid', $client->hit('api', $many)->reason);
        $this->assertSame(16, $read); // the first that is too many
    }

    public function testABinaryIdemNamesARefund(): void
    {
        $daemon = $this->played(static fn (array $m): array => $m[0] === Wire::CHARGE ? [2, $m[1], true] : decision($m, ALLOW, 77));
        $client = $this->client($daemon->path);
        $granted = $client->hit('api', [], idem: "\xff\xfe");
        $this->assertNull($granted->reason);
        $this->assertTrue($client->charge('api', [], -1, of: $granted));
        $this->assertSame("\xff\xfe", $daemon->seen(Wire::CHARGE)[0][5]->of->raw);
    }

    // PHP starts a wait anew after each signal whose handler returns.
    public function testSignalsDoNotExtendADeadline(): void
    {
        $daemon = $this->played();
        $daemon->signal(SIGSTOP);
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, static function () use (&$signals): void {
            $signals++;
        }, false);
        [$parent, $signals] = [getmypid(), 0];
        if (($pid = pcntl_fork()) === 0) {
            for (;; usleep(20_000)) {
                posix_kill($parent, SIGUSR1);
            }
        }
        try {
            $began = hrtime(true);
            $decision = $this->client($daemon->path, timeout: 0.2)->hit('api');
            $seconds = (hrtime(true) - $began) / 1e9;
        } finally {
            posix_kill($pid, SIGKILL);
            pcntl_waitpid($pid, $status);
            pcntl_signal(SIGUSR1, SIG_DFL);
            $daemon->signal(SIGCONT);
        }
        $this->assertSame('timeout', $decision->reason);
        $this->assertGreaterThan(2, $signals);
        $this->assertLessThan(1.0, $seconds); // with waits anew until the last signal: never
    }

    public function testACallInsideACallHasItsOwnConnection(): void
    {
        $daemon = $this->played(static function (array $m): array {
            $m[0] === Wire::ACQUIRE && usleep(200_000);
            return decision($m, [0, (string) $m[0], 1, 1, 1, 1, 0]);
        });
        $client = $this->client($daemon->path);
        [$outer, $inner] = $this->acquiresAndHitsMeanwhile($client, $daemon);
        $this->assertSame(['1', '3'], [$outer->rule, $inner->rule]);
        $this->assertCount(2, $daemon->seen(Wire::HELLO));
        $this->assertSame([], $client->stats()['missed']);
    }

    /** @return array{Decision, Decision} of an acquire, and of a hit in a signal handler while it waits */
    private function acquiresAndHitsMeanwhile(Client $client, mixed $daemon): array
    {
        $inner = null;
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, static function () use ($client, &$inner): void {
            $inner = $client->hit('api');
        });
        $parent = getmypid();
        $pid = pcntl_fork();
        if ($pid === 0) {
            $daemon->wait(Wire::ACQUIRE);
            posix_kill($parent, SIGUSR1);
            posix_kill(getmypid(), SIGKILL);
        }
        $outer = $client->acquire('api');
        pcntl_waitpid($pid, $status);
        pcntl_signal(SIGUSR1, SIG_DFL);
        return [$outer, $inner];
    }

    public function testCountsFailuresWhoseWaitsOverlapAsOne(): void
    {
        $daemon = $this->played();
        $daemon->mode('mute');
        $client = $this->client($daemon->path, timeout: 0.05);
        [$outer, $inner] = $this->acquiresAndHitsMeanwhile($client, $daemon);
        $this->assertSame(['timeout', 'timeout'], [$outer->reason, $inner->reason]);
        $this->assertSame(['timeout'], self::hits($client));
        $this->assertFalse($client->stats()['breakerOpen']);
        $this->assertSame(['timeout', 'breaker'], self::hits($client, 2));
    }

    public function testReleasesALeaseWhenTheRequestExitsAndClosesAStreamInTheMiddleOfACall(): void
    {
        $daemon = $this->played(static fn (array $m, string $mode) => match (true) {
            $m[0] === 1 => decision($m, ALLOW, 42),
            $mode === 'allow' => null,
            default => decision($m),
        });
        $prelude = sprintf('require %s; $client = new Tidegate\Client(%s, timeout: 0.2);', var_export(realpath(__DIR__ . '/../Tidegate.php'), true), var_export($daemon->path, true));
        exec(PHP_BINARY . ' -r ' . escapeshellarg("$prelude \$d = \$client->acquire('api'); exit(3);"), $lines, $code);
        $this->assertSame(3, $code);
        $this->assertSame([[2, null, 42, 2]], $daemon->wait(Wire::RELEASE));
        $mid = "$prelude pcntl_async_signals(true); pcntl_signal(SIGALRM, fn () => exit(4)); pcntl_alarm(1);"
            . '$d = $client->acquire("api"); while (true) { $client->hit("api"); }';
        exec(PHP_BINARY . ' -d error_log=/dev/null -r ' . escapeshellarg($mid), $lines, $code);
        $this->assertSame(4, $code);
    }

    public function testAForkHasItsOwnConnectionAndEndsNoLeaseOfItsParent(): void
    {
        $daemon = $this->played();
        $client = $this->client($daemon->path);
        $d = $client->acquire('api');
        $pid = pcntl_fork();
        if ($pid === 0) {
            $d->release();
            $well = self::hits($client) === [null];
            Tidegate\Connection::endRequest();
            posix_kill(getmypid(), $well ? SIGKILL : SIGTERM);
        }
        pcntl_waitpid($pid, $status);
        $this->assertSame(SIGKILL, pcntl_wtermsig($status));
        $this->assertSame([null], self::hits($client));
        $hellos = $daemon->seen(Wire::HELLO);
        $this->assertSame([getmypid(), $pid], array_map(static fn (array $m): int => $m[3]->pid, $hellos));
        $this->assertNotEquals($hellos[0][3]->session, $hellos[1][3]->session);
        $this->assertSame([], $daemon->seen(Wire::RELEASE));
        $d->release();
        $daemon->wait(Wire::RELEASE);
    }

    public function testObservesDecisionsAndSurvivesItsObserver(): void
    {
        $daemon = $this->played();
        $seen = [];
        $client = $this->client($daemon->path, onDecision: function (Decision $d, float $seconds) use (&$seen): void {
            $seen[] = [$d->verdict, $d->reason, $seconds > 0 && $seconds < PATIENT];
            throw new LogicException('secret');
        });
        $client->hit('api');
        $client->peek('api');
        $client->hit('a/b');
        $this->assertSame([['allow', null, true], ['shed', 'invalid', true]], $seen);
        $this->assertSame(['tidegate: onDecision threw LogicException'], array_values(preg_grep('/onDecision/', $this->lines)));
    }

    public function testLogsAnUnknownDomainOnce(): void
    {
        $daemon = $this->played(static fn (array $m): array => array_replace(decision($m, [0, null, null, null, null, null, 0]), [10 => ['unmatched', 'domain']]));
        $client = $this->client($daemon->path);
        self::hits($client, 2);
        $this->assertSame(['tidegate: the rules have no domain "api"; its requests are not limited'], $this->lines);
    }

    public function testLogsOnceForEachDomainThatNoRuleMatched(): void
    {
        $daemon = $this->played(static fn (array $m): array => array_replace(decision($m, [0, null, null, null, null, null, 0]), [10 => ['unmatched', 'rule']]));
        $client = $this->client($daemon->path);
        $all = [['user' => 'u1', 'plan' => 'secret'], ['user' => 'u1', 'org' => 'o1']];
        foreach ([['shop', $all], ['shop', ['path' => '/']], ['jobs', []]] as [$domain, $attributes]) {
            $this->assertTrue($client->hit($domain, $attributes)->allowed);
        }
        $this->assertSame([
            'tidegate: no rule of the domain "shop" matches a request with the attributes user, plan, org: it is not limited; `tidegate why shop …` says why',
            'tidegate: no rule of the domain "jobs" matches a request without attributes: it is not limited; `tidegate why jobs …` says why',
        ], $this->lines);
    }

    public function testNamesAPathThatIsNoSocketAndTheAdminSocket(): void
    {
        $path = folder();
        $this->client($path)->hit('api');
        touch("$path/s");
        $this->client("$path/s")->hit('api');
        $this->assertStringStartsWith("tidegate: $path is no socket: set TIDEGATE_SOCKET to that of the daemon; requests ", $this->lines[0]);
        $this->assertStringStartsWith("tidegate: $path/s is no socket: set TIDEGATE_SOCKET to that of the daemon; requests ", $this->lines[1]);
        $daemon = $this->played(static fn (): string => "HTTP/1.1 400 Bad Request\r\n\r\n", "$path/t");
        $this->assertSame('protocol', $this->client($daemon->path)->hit('api')->reason);
        $this->assertStringContainsString('that is the admin socket; set TIDEGATE_SOCKET to the one beside it', $this->lines[2]);
    }

    public function testHonorsTheEnvironment(): void
    {
        $daemon = $this->played();
        putenv("TIDEGATE_SOCKET=$daemon->path");
        putenv('TIDEGATE_TIMEOUT_MS=12.5');
        $client = new Client();
        $this->assertSame(0.0125, $client->timeout);
        $client = new Client(timeout: PATIENT);
        $this->assertNull($client->hit('api')->reason);
        foreach (['abc', '0', '-5', '1e3', '10001'] as $wrong) {
            putenv("TIDEGATE_TIMEOUT_MS=$wrong");
            $lines = [];
            $client = new Client(folder() . '/s', logger: static function (string $line) use (&$lines): void {
                $lines[] = $line;
            });
            $this->assertSame([0.020, ["tidegate: TIDEGATE_TIMEOUT_MS is \"$wrong\", not above 0 and up to 10000: the timeout is 20 ms"]], [$client->timeout, $lines]);
        }
        putenv('TIDEGATE_TIMEOUT_MS');
        putenv('TIDEGATE_DISABLE=1');
        $lines = [];
        $disabled = new Client(logger: static function (string $line) use (&$lines): void {
            $lines[] = $line;
        });
        $disabled->hit('api');
        $d = $disabled->acquire('api');
        $this->assertSame([true, 'disabled', false, false], [$d->allowed, $d->reason, $disabled->charge('api'), $disabled->check()]);
        $this->assertSame(['tidegate: TIDEGATE_DISABLE is "1": nothing is limited'], $lines);
        array_map(putenv(...), ['TIDEGATE_SOCKET', 'TIDEGATE_TIMEOUT_MS', 'TIDEGATE_DISABLE']);
        $this->assertCount(1, $daemon->seen(Wire::HELLO));
    }

    public function testFallbackIsABucketThatRefills(): void
    {
        $client = $this->client(folder() . '/s', fallback: '20/s burst 2');
        $allowed = static fn (): bool => $client->hit('api', ['user' => 'u'])->allowed;
        $this->assertSame([true, true, false], [$allowed(), $allowed(), $allowed()]);
        $d = $client->peek('api', ['user' => 'u']);
        $this->assertTrue($d->retryAfter > 0 && $d->retryAfter <= 0.05, (string) $d->retryAfter);
        usleep((int) ceil($d->retryAfter * 1e6));
        $this->assertTrue($client->peek('api', ['user' => 'u'])->allowed);
        $this->assertTrue($allowed());
        $this->assertSame([2, 0.1], [$d->limit, $d->window]);
        $this->assertTrue((new Client($daemon = folder() . '/s', logger: static fn () => null))->hit('api', fallback: new Fallback('1/h'))->allowed);
    }
}

function tap(mixed $value, callable $work): mixed
{
    $work();
    return $value;
}
