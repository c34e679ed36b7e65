<?php

// The adapter of the PHP client: a command as a line of JSON on standard input, its result on standard output.

declare(strict_types=1);

require __DIR__ . '/../../../clients/php/Tidegate.php';

$clients = [];
$lines = [];
$last = null;

/** `{"invalid": true}` is text that is no UTF-8. */
function ask(Tidegate\Client $client, array $given): array
{
    $attributes = array_map(static fn (mixed $value): mixed => match (true) {
        isset($value['object']) => new class () {},
        default => is_array($value) ? "\xff\xfe" : $value,
    }, $given['attributes']);
    $options = array_intersect_key($given, array_flip(['cost', 'priority', 'idem']));
    $options += isset($given['on_failure']) ? ['onFailure' => $given['on_failure']] : [];
    $call = in_array($given['do'], ['acquire', 'peek'], true) ? $given['do'] : 'hit';
    $micros = static fn (?float $seconds): ?int => $seconds === null ? null : (int) round($seconds * 1e6);
    $began = hrtime(true);
    try {
        $decision = $client->$call($given['domain'], $attributes, ...$options);
    } catch (\Throwable $error) {
        return ['raised' => $error::class, 'took_us' => intdiv(hrtime(true) - $began, 1_000)];
    }
    $took = intdiv(hrtime(true) - $began, 1_000);
    $GLOBALS['last'] = $decision;
    $said = ['took_us' => $took, 'retry_us' => $micros($decision->retryAfter), 'wait_us' => $micros($decision->wait)];
    foreach (['allowed', 'verdict', 'status', 'degraded', 'reason', 'rule', 'limit', 'remaining', 'lease'] as $name) {
        $said[$name] = $decision->$name;
    }
    return $said;
}

/** Runs work under a lease, which throws if `fails`. */
function work(Tidegate\Client $client, array $given): array
{
    $ran = false;
    try {
        $client->limit($given['domain'], $given['attributes'], static function () use (&$ran, $given): void {
            $ran = true;
            $given['fails'] && throw new DomainException('of the application');
        });
        return ['ran' => $ran];
    } catch (\Throwable $error) {
        return ['ran' => $ran, 'raised' => $error::class];
    }
}

/** Asks in a forked child. */
function ask_in_child(Tidegate\Client $client, array $given): array
{
    [$reader, $writer] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $child = pcntl_fork();
    if ($child === 0) {
        fwrite($writer, json_encode(ask($client, $given)));
        posix_kill(getmypid(), SIGKILL); // without the functions at the end of a request, which are the parent's
    }
    fclose($writer);
    $said = json_decode(stream_get_contents($reader), true);
    pcntl_waitpid($child, $status);
    return $said;
}

function make(array $given, array &$lines): Tidegate\Client
{
    $logger = static function (string $line) use (&$lines): void {
        $lines[] = $line;
    };
    $timeout = isset($given['timeout_ms']) ? $given['timeout_ms'] / 1e3 : null;
    return new Tidegate\Client($given['socket'], $timeout, enabled: $given['enabled'] ?? true,
        logger: $logger, fallback: $given['fallback'] ?? null);
}

while (($line = fgets(STDIN)) !== false) {
    $given = json_decode($line, true, 512, JSON_THROW_ON_ERROR);
    $client = $clients[$given['client']] ?? null;
    $said = [];
    switch ($given['do']) {
        case 'make':
            $client?->close();
            $clients[$given['client']] = make($given, $lines);
            break;
        case 'release':
            $last->release($given['outcome']);
            break;
        case 'log':
            [$said, $lines] = [['lines' => $lines], []];
            break;
        case 'stats':
            $stats = $client->stats();
            $said = ['missed' => (object) $stats['missed'], 'refused' => (object) $stats['refused'],
                'connections' => $stats['connections'], 'breaker_open' => $stats['breakerOpen']];
            break;
        default:
            $said = match ($given['do']) {
                'work' => work($client, $given),
                'fork' => ask_in_child($client, $given),
                default => ask($client, $given),
            };
    }
    echo json_encode((object) $said, JSON_THROW_ON_ERROR), "\n";
}
