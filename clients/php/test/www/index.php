<?php

// An application of PHP-FPM: checks the user of the query, and says how it was decided.

declare(strict_types=1);

use Tidegate\Client;
use Tidegate\Guard;
use Tidegate\Wire;

require __DIR__ . '/../../Guard.php';

if (isset($_GET['plain'])) {
    echo 'ok';
    return;
}
$client = new Client(getenv('SOCKET'), timeout: isset($_GET['patient']) ? 10.0 : null, fallback: isset($_GET['fallback']) ? '5/h' : null);
if (isset($_GET['abort'])) { // ends the request under a lease
    $client->acquire('api', ['job' => 'export'])->allowed || throw new RuntimeException('no place is left');
    $_GET['abort'] === 'exit' ? exit : undefined();
}
if (isset($_GET['leave'])) { // leaves a request on the stream of this worker, without the client's knowledge
    $stream = pfsockopen('unix://' . getenv('SOCKET'), -1 - crc32(getmypid() . '/default/0'));
    $hello = ftell($stream) === 0 ? Wire::frame(Wire::HELLO, 0, ["\x01"]) : '';
    fwrite($stream, $hello . Wire::frame(Wire::HIT, hrtime(true), array_map(Wire::encode(...), ['api', [['user', 'u9']], 1])));
    return;
}
if (isset($_GET['peek'])) {
    echo $client->peek('api', ['job' => 'export'])->remaining;
    return;
}
$guard = new Guard($client, 'api', user: static fn (): string => $_GET['user'], attributes: static fn (): array => ['job' => $_GET['job'] ?? ''],
    instrument: static function ($decision, float $seconds): void {
        header('X-Reason: ' . ($decision->reason ?? 'none'));
        header('X-Judged: ' . $seconds);
    });
$guard->protect();
isset($_GET['redirect']) && header('Location: /', true, 302);
echo 'ok ' . getmypid();
