<?php

// A scripted daemon, the real one, and the interfaces that the middleware needs.

declare(strict_types=1);

use Tidegate\Client;
use Tidegate\Wire;

require is_file(__DIR__ . '/../vendor/autoload.php') ? __DIR__ . '/../vendor/autoload.php' : 'Nyholm/Psr7/autoload.php';
interface_exists(Psr\Http\Server\MiddlewareInterface::class) || require __DIR__ . '/psr15.php'; // Debian has no package of it
require __DIR__ . '/../Middleware.php'; // requires the others

foreach (['TIDEGATE_SOCKET', 'TIDEGATE_TIMEOUT_MS', 'TIDEGATE_DISABLE', 'XDG_RUNTIME_DIR'] as $name) {
    putenv($name);
}

const ROOT = __DIR__ . '/../../..';
const PATIENT = 30.0; // seconds, for tests that are not about the deadline, on a busy machine
const ALLOW = [0, 'per-user', 40, 2_000_000, 39, 50_000, 0];
const LIMIT = [1, 'per-user', 40, 2_000_000, 0, 50_000, 50_000];

function frame(array|string $message): string
{
    $payload = is_string($message) ? $message : Wire::encode($message);
    return pack('N', strlen($payload)) . $payload;
}

/** Returns a decision on a request in full, as the real daemon sends it. */
function decision(array $message, array $verdict = ALLOW, ?int $lease = null): array
{
    return array_pad([1, $message[1], ...array_pad($verdict, 7, null), $lease], 13, null);
}

/** Makes a folder whose path is short enough for a socket; `sweep` removes it. */
function folder(): string
{
    global $folders;
    $path = sys_get_temp_dir() . '/tg-' . bin2hex(random_bytes(4));
    mkdir($path, 0700);
    return $folders[] = $path;
}

function sweep(): void
{
    global $folders;
    foreach ($folders ?? [] as $folder) {
        exec('rm -rf ' . escapeshellarg($folder));
    }
    $folders = [];
}

function until(callable $condition, string $what = 'condition'): mixed
{
    for ($end = hrtime(true) + PATIENT * 1e9; !($value = $condition()); usleep(1_000)) {
        hrtime(true) < $end || throw new RuntimeException("not in time: $what");
    }
    return $value;
}

/** A daemon in a process of its own. Its script gets each request but HELLO and PING, and returns replies or bytes. */
final class Played
{
    private ?int $pid = null;

    /**
     * @param Closure $script from (message, mode) to a reply, bytes, an object with its `last` bytes before it hangs up, null,
     *     or false: hang up; a `usleep` in it delays the reply
     */
    public function __construct(private readonly Closure $script, public readonly string $path, private string $mode = 'allow')
    {
        file_put_contents("$path.seen", '');
        $this->mode($mode);
        $this->start();
    }

    public function mode(string $mode): void
    {
        file_put_contents("$this->path.new", $mode);
        rename("$this->path.new", "$this->path.mode");
    }

    public function start(): void
    {
        $server = stream_socket_server("unix://$this->path");
        $this->pid = pcntl_fork();
        if ($this->pid === 0) {
            try {
                $this->serve($server);
            } catch (Throwable $error) {
                fwrite(STDERR, "$error\n");
            }
            posix_kill(getmypid(), SIGKILL); // without the shutdown functions of the test runner
        }
        fclose($server);
    }

    public function stop(): void
    {
        if ($this->pid !== null) {
            posix_kill($this->pid, SIGKILL);
            pcntl_waitpid($this->pid, $status);
            $this->pid = null;
            unlink($this->path);
        }
    }

    public function signal(int $signal): void
    {
        posix_kill($this->pid, $signal);
    }

    /** Returns all messages so far of an op. */
    public function seen(int $op): array
    {
        $lines = file("$this->path.seen", FILE_IGNORE_NEW_LINES);
        $messages = array_map(static fn (string $line): array => Wire::decode(hex2bin($line)), $lines);
        return array_values(array_filter($messages, static fn (array $message): bool => $message[0] === $op));
    }

    /** Waits for messages of an op. */
    public function wait(int $op, int $count = 1): array
    {
        return until(fn () => count($this->seen($op)) >= $count ? $this->seen($op) : null, "$count of op $op");
    }

    private function serve($server): void
    {
        [$clients, $rest] = [[], []];
        while (true) {
            [$read, $none] = [[$server, ...$clients], null];
            stream_select($read, $none, $none, null);
            foreach ($read as $stream) {
                if ($stream === $server) {
                    $clients[] = $new = stream_socket_accept($server);
                    stream_set_read_buffer($new, 0);
                    $rest[(int) $new] = '';
                    continue;
                }
                $rest[(int) $stream] .= $data = (string) @fread($stream, 65_536);
                if ($data === '') {
                    $clients = array_filter($clients, static fn ($one) => $one !== $stream);
                    fclose($stream);
                    continue;
                }
                for ($all = &$rest[(int) $stream]; strlen($all) >= 4 && strlen($all) >= 4 + unpack('N', $all)[1];) {
                    $payload = substr($all, 4, unpack('N', $all)[1]);
                    $all = substr($all, 4 + strlen($payload));
                    file_put_contents("$this->path.seen", bin2hex($payload) . "\n", FILE_APPEND);
                    $reply = $this->answer(Wire::decode($payload), file_get_contents("$this->path.mode"));
                    is_object($reply) && fwrite($stream, $reply->last);
                    if ($reply === false || is_object($reply)) {
                        $clients = array_filter($clients, static fn ($one) => $one !== $stream);
                        stream_socket_shutdown($stream, STREAM_SHUT_RDWR);
                        fclose($stream);
                        break;
                    }
                    $reply === null || @fwrite($stream, is_string($reply) ? $reply : frame($reply));
                }
                unset($all);
            }
        }
    }

    private function answer(array $message, string $mode): array|string|object|false|null
    {
        if ($mode === 'mute') {
            return null;
        }
        if ($message[0] === Wire::HELLO) {
            return [0, $message[1], 1, (object) ['server' => 'played/1']];
        }
        if ($message[0] === Wire::PING) {
            return [2, $message[1], true];
        }
        $reply = ($this->script)($message, $mode);
        return $message[1] === null && is_array($reply) ? null : $reply;
    }
}

/** Base of the tests: makes clients and daemons, and removes them. */
abstract class Base extends PHPUnit\Framework\TestCase
{
    protected array $lines = [];
    private array $stops = [];

    /** Answers as mode says: grants with lease 76 + n, or one of the scripts of the test. */
    protected function played(?Closure $script = null, ?string $path = null): Played
    {
        $played = new Played($script ?? static fn (array $m): array => $m[0] === 1 ? decision($m, ALLOW, 77)
            : (in_array($m[0], [3, 4], true) ? decision($m) : [2, $m[1], true]), $path ?? folder() . '/s');
        $this->stops[] = $played->stop(...);
        return $played;
    }

    protected function client(string $path, mixed ...$options): Client
    {
        $options += ['timeout' => PATIENT, 'logger' => function (string $line): void {
            $this->lines[] = $line;
        }];
        $client = new Client($path, ...$options);
        $this->stops[] = $client->close(...);
        return $client;
    }

    /** Starts a process, and ends it after the test. */
    protected function process(array $command, string $log, array $env = []): object
    {
        $process = proc_open($command, [['file', '/dev/null', 'r'], ['file', $log, 'a'], ['file', $log, 'a']], $pipes, null, $env + getenv());
        $pid = proc_get_status($process)['pid'];
        $stop = static function (int $signal = SIGTERM) use ($process, $pid, &$process_closed): void {
            if ($process_closed !== true) {
                posix_kill($pid, $signal);
                $signal === SIGKILL && posix_kill($pid, SIGCONT);
                proc_close($process);
                $process_closed = true;
            }
        };
        $this->stops[] = $stop;
        return (object) ['pid' => $pid, 'stop' => $stop];
    }

    /** Starts the real daemon with these rules. */
    protected function daemon(string $path, string $rules): object
    {
        $binary = getenv('TIDEGATE_BIN') ?: throw new RuntimeException('set TIDEGATE_BIN to a daemon');
        $folder = dirname($path) . '/rules';
        is_dir($folder) || mkdir($folder);
        file_put_contents("$folder/rules.yaml", $rules);
        $process = $this->process([$binary, 'serve', '--socket', $path, '--rules', $folder], dirname($path) . '/daemon.log');
        $probe = new Client($path, timeout: 1.0, persistent: false, logger: static fn () => null);
        until($probe->check(...), 'the daemon: ' . @file_get_contents(dirname($path) . '/daemon.log'));
        $probe->close();
        return $process;
    }

    protected function tearDown(): void
    {
        foreach (array_reverse($this->stops) as $stop) {
            $stop();
        }
        $this->stops = [];
        sweep();
    }
}
