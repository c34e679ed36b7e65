<?php

// A real php-fpm behind a real nginx, with the real daemon: limits hold, one connection per worker, and no request waits
// for a daemon that is killed or stopped.

declare(strict_types=1);

require_once __DIR__ . '/support.php';

final class FpmTest extends Base
{
    private const WORKERS = 4;
    private const RULES = <<<'YAML'
        domain: api
        concurrency:
          - {name: at-once, match: {job: export}, key: [], max: 2, expires: 1h}
        limits:
          - {name: per-user, key: [user], rate: 5/h}
        YAML;
    private string $folder;
    private int $port;
    private object $daemon;

    protected function setUp(): void
    {
        foreach (['nginx', self::fpm()] as $program) {
            exec("command -v $program", $found, $missing);
            if ($missing) {
                throw new RuntimeException("$program is missing; help: apt-get install php-fpm php-apcu nginx-light");
            }
        }
    }

    private static function fpm(): string
    {
        return 'php-fpm' . PHP_MAJOR_VERSION . '.' . PHP_MINOR_VERSION;
    }

    /** Starts php-fpm and nginx, and the real daemon unless `$script` is one. */
    private function serve(bool $apcu, ?Closure $script = null): void
    {
        $this->folder = $folder = folder();
        if ($script === null) {
            $this->daemon = $this->daemon("$folder/s", self::RULES);
        } else {
            $this->played($script, "$folder/s");
        }
        [$workers, $root, $user] = [self::WORKERS, __DIR__ . '/www', posix_getpwuid(posix_geteuid())['name']];
        file_put_contents("$folder/fpm.conf", <<<INI
            [global]
            error_log = $folder/fpm.log
            daemonize = no
            [www]
            user = $user
            listen = $folder/fpm
            pm = static
            pm.max_children = $workers
            catch_workers_output = yes
            decorate_workers_output = no
            env[SOCKET] = $folder/s
            php_admin_value[error_log] = $folder/php.log
            php_admin_value[display_errors] = 0
            INI);
        $probe = stream_socket_server('tcp://127.0.0.1:0');
        $this->port = (int) explode(':', stream_socket_get_name($probe, false))[1];
        fclose($probe);
        file_put_contents("$folder/nginx.conf", <<<CONF
            daemon off;
            user $user;
            worker_processes 1;
            pid $folder/nginx.pid;
            error_log $folder/nginx.log;
            events {}
            http {
              access_log off;
              client_body_temp_path $folder/t1; proxy_temp_path $folder/t2; fastcgi_temp_path $folder/t3;
              uwsgi_temp_path $folder/t4; scgi_temp_path $folder/t5;
              server {
                listen 127.0.0.1:$this->port;
                location / {
                  include /etc/nginx/fastcgi_params;
                  fastcgi_param SCRIPT_FILENAME $root/index.php;
                  fastcgi_param X_REQUEST_START "t=\$msec";
                  fastcgi_pass unix:$folder/fpm;
                }
              }
            }
            CONF);
        $this->process([self::fpm(), '-F', '-R', '-y', "$folder/fpm.conf", '-d', 'apc.enabled=' . (int) $apcu], "$folder/fpm.out");
        $this->process(['nginx', '-p', $folder, '-c', "$folder/nginx.conf", '-e', "$folder/nginx.log"], "$folder/nginx.out");
        until(fn (): bool => ($this->get('plain=1')[0] ?? 0) === 200, 'nginx and php-fpm');
    }

    /** @return array{int, array<string, string>, string, float} status, headers, body and seconds */
    private function get(string $query): array
    {
        $began = hrtime(true);
        $http = @stream_socket_client("tcp://127.0.0.1:$this->port", timeout: PATIENT);
        if ($http === false) {
            return [0, [], '', 0.0];
        }
        stream_set_timeout($http, (int) PATIENT);
        fwrite($http, "GET /?$query HTTP/1.0\r\nHost: localhost\r\n\r\n");
        [$head, $body] = explode("\r\n\r\n", stream_get_contents($http), 2) + ['', ''];
        $lines = explode("\r\n", $head);
        $headers = [];
        foreach (array_slice($lines, 1) as $line) {
            [$name, $value] = explode(': ', $line, 2);
            $headers[strtolower($name)] = $value;
        }
        return [(int) (explode(' ', $lines[0])[1] ?? 0), $headers, $body, (hrtime(true) - $began) / 1e9];
    }

    /** Requests in several processes until `$stop()`; returns all answers of both kinds of query. */
    private function load(array $queries, Closure $meanwhile): array
    {
        $pids = [];
        for ($i = 0; $i < self::WORKERS; $i++) {
            $pids[] = $pid = pcntl_fork();
            if ($pid === 0) {
                for ($answers = []; !file_exists("$this->folder/stop");) {
                    foreach ($queries as $query) {
                        $answers[$query][] = $this->get($query);
                    }
                }
                file_put_contents("$this->folder/answers.$i", serialize($answers));
                posix_kill(getmypid(), SIGKILL);
            }
        }
        $meanwhile();
        touch("$this->folder/stop");
        array_map(static fn (int $pid) => pcntl_waitpid($pid, $status), $pids);
        unlink("$this->folder/stop");
        $all = [];
        for ($i = 0; $i < self::WORKERS; $i++) {
            $all = array_merge_recursive($all, unserialize(file_get_contents("$this->folder/answers.$i")));
        }
        return $all;
    }

    /** Asserts that of 20 requests of a new user 5 pass. */
    private function assertLimits(string $user, string $more = ''): void
    {
        $answers = $this->statuses("user=$user&patient=1$more", 5);
        ksort($answers);
        $this->assertSame([200 => 5, 429 => 15], $answers, (string) @file_get_contents("$this->folder/php.log"));
    }

    /** Counts the statuses of requests that several processes make. */
    private function statuses(string $query, int $each): array
    {
        $pids = [];
        for ($i = 0; $i < self::WORKERS; $i++) {
            $pids[] = $pid = pcntl_fork();
            if ($pid === 0) {
                $statuses = array_map(fn (): int => $this->get($query)[0], range(1, $each));
                file_put_contents("$this->folder/statuses.$i", implode("\n", $statuses) . "\n");
                posix_kill(getmypid(), SIGKILL);
            }
        }
        array_map(static fn (int $pid) => pcntl_waitpid($pid, $status), $pids);
        $lines = array_merge(...array_map(fn (int $i): array => file("$this->folder/statuses.$i", FILE_IGNORE_NEW_LINES), range(0, self::WORKERS - 1)));
        return array_count_values($lines);
    }

    /** Counts the connections that the daemon has accepted; it binds its socket under a name with ~. */
    private function connections(): int
    {
        return count(preg_grep("~ 03 +\d+ $this->folder/[s\~]$~", file('/proc/net/unix', FILE_IGNORE_NEW_LINES)));
    }

    /** @return list<string> lines of the client */
    private function logged(): array
    {
        return array_values(preg_grep('/tidegate: /', file_exists("$this->folder/php.log") ? file("$this->folder/php.log") : []));
    }

    public function testHoldsLimitsWithOneConnectionPerWorkerAndReleasesLeasesOfAbortedRequests(): void
    {
        $this->serve(apcu: false);
        foreach (['a', 'b', 'c'] as $user) {
            $this->assertLimits($user);
            $this->statuses('leave=1', 2); // replies without a reader
        }
        [$status, $headers, $body] = $this->get('user=a&patient=1');
        $this->assertSame([429, 'application/problem+json', '5'], [$status, $headers['content-type'], $headers['x-ratelimit-limit']]);
        $this->assertGreaterThan(0, (int) $headers['retry-after']);
        $this->assertSame(json_decode($body)->status, 429);
        [$status, $headers] = $this->get('user=d&redirect=1&patient=1');
        $this->assertSame([302, false], [$status, isset($headers['ratelimit'])]);
        $this->assertSame('"per-user";r=3;t=720', $this->get('user=d&patient=1')[1]['ratelimit']);
        foreach (['exit', 'error', 'exit', 'error', 'error', 'error'] as $how) {
            $this->assertSame($how === 'exit' ? 200 : 500, $this->get("abort=$how&patient=1")[0]);
        }
        $this->assertSame('2', until(fn (): ?string => $this->get('peek=1&patient=1')[2] === '2' ? '2' : null, 'both places'));
        $this->assertStringNotContainsString('no place is left', file_get_contents("$this->folder/php.log"));
        $this->assertSame([], $this->logged());
        $this->assertLessThanOrEqual(self::WORKERS, $this->connections());
        $this->assertGreaterThanOrEqual(1, $this->connections());
        $this->assertSame(500, $this->get('user=x&fallback=1')[0]); // without APCu its buckets would be forgotten
    }

    public static function shared(): array
    {
        return ['without APCu' => [false], 'with APCu' => [true]];
    }

    /** @dataProvider shared */
    public function testPassesRequestsQuicklyWhileTheDaemonIsKilledOrStopped(bool $apcu): void
    {
        $this->serve($apcu);
        $this->assertLimits('before');
        $answers = $this->load(['plain=1', 'user=u'], function (): void {
            usleep(300_000);
            ($this->daemon->stop)(SIGKILL);
            usleep(500_000);
            $this->daemon = $this->daemon("$this->folder/s", self::RULES);
            until(fn (): bool => ($this->get('user=u')[1]['x-reason'] ?? '') === 'none', 'a decision of the daemon');
            usleep(300_000);
            posix_kill($this->daemon->pid, SIGSTOP);
            usleep(1_000_000);
            posix_kill($this->daemon->pid, SIGCONT);
            usleep(500_000);
        });
        [$plain, $judged] = array_values($answers);
        $this->assertSame([200], array_values(array_unique(array_column($plain, 0))));
        $reasons = array_count_values(array_map(static fn (array $a): string => $a[1]['x-reason'] ?? 'missing', $judged));
        $seconds = array_map(static fn (array $a): float => (float) $a[1]['x-judged'], $judged);
        sort($seconds);
        $longest = max(array_column($plain, 3));
        $share = static fn (float $p): float => $seconds[(int) ($p * (count($seconds) - 1))] * 1e3;
        fprintf(STDERR, "apcu %d: %d requests %s, judging p50 %.3f ms, p99 %.3f ms, longest %.1f ms; longest plain request %.1f ms\n",
            $apcu, count($judged), json_encode($reasons), $share(0.5), $share(0.99), $share(1), $longest * 1e3);
        // Of 5 requests an hour the rest is refused while the daemon answers, and passes without it.
        foreach ($judged as [$status, $headers]) {
            $this->assertContains($status, $headers['x-reason'] === 'none' ? [200, 429] : [200]);
        }
        $this->assertGreaterThan(0, $reasons['unreachable'] ?? 0);
        $this->assertGreaterThan(0, $reasons['timeout'] ?? 0);
        $this->assertLessThan(2 * 20 + $longest * 1e3, $share(0.99));
        $this->assertLessThan(1_000, $share(1)); // the machine's own delays
        if ($apcu) { // one breaker of all workers
            $this->assertGreaterThan(0, $reasons['breaker'] ?? 0);
            $this->assertLessThan(40, $reasons['timeout']);
            $this->assertLessThan(20, count($this->logged()), implode('', $this->logged()));
        }
        until(fn (): bool => ($this->get('user=again')[1]['x-reason'] ?? '') === 'none');
        $this->assertLimits('after');
        $this->assertLessThanOrEqual(self::WORKERS, $this->connections());
    }

    /** Each reply derives from its request; some come after the deadline, some to requests that did not wait. */
    public function testNoReplyReachesAnotherRequest(): void
    {
        $this->serve(apcu: false, script: static function (array $m): array {
            $user = (int) substr(array_column(array_chunk($m[3][0], 2), 1, 0)['user'], 1);
            usleep([5_000, 30_000][random_int(0, 29)] ?? 0);
            return decision($m, [0, 'own', 1_000 + $user, 1, 1, 1, 0]);
        });
        $queries = array_map(static fn (int $i): string => $i % 10 === 0 ? "leave=$i" : "user=u$i", range(1, 30));
        $answers = $this->load($queries, static fn () => usleep(1_500_000));
        [$right, $degraded] = [0, 0];
        foreach ($answers as $query => $all) {
            foreach (str_starts_with($query, 'user=u') ? $all : [] as [$status, $headers]) {
                $this->assertSame(200, $status);
                if ($headers['x-reason'] === 'none') {
                    $right++;
                    $this->assertSame((string) (1_000 + (int) substr($query, 6)), $headers['x-ratelimit-limit'], $query);
                } else {
                    $degraded++;
                    $this->assertArrayNotHasKey('x-ratelimit-limit', $headers);
                }
            }
        }
        $this->assertGreaterThan(50, $right);
        $this->assertGreaterThan(5, $degraded);
    }

    public function testFallbackLimitsAllWorkersTogether(): void
    {
        $this->serve(apcu: true);
        ($this->daemon->stop)(SIGKILL);
        $this->assertLimits('f', '&fallback=1');
        $this->assertCount(1, $this->logged());
        $this->assertMatchesRegularExpression('/no daemon at .*; requests are limited by the fallback/', $this->logged()[0]);
    }
}
