<?php

// Compares a call with the same bytes over a bare stream of PHP, in turns: `TIDEGATE_BIN=… php test/cost.php [CALLS]`.

declare(strict_types=1);

use Tidegate\Client;
use Tidegate\Request;
use Tidegate\Wire;

require __DIR__ . '/../Tidegate.php';

$folder = sys_get_temp_dir() . '/tg-' . getmypid();
mkdir($folder);
file_put_contents("$folder/rules.yaml", "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s}\n");
$daemon = proc_open([getenv('TIDEGATE_BIN'), 'serve', '--socket', "$folder/s", '--rules', $folder], [1 => ['file', '/dev/null', 'w'], 2 => ['file', '/dev/null', 'w']], $pipes);
$client = new Client("$folder/s", timeout: 1.0, logger: static fn () => null);
while (!$client->check()) {
    usleep(10_000);
}
$bare = stream_socket_client("unix://$folder/s");
$elements = (new Request(Wire::HIT, 'api', [['user', 'u1']], 1, null, []))->elements();
fwrite($bare, Wire::frame(Wire::HELLO, 0, ["\x01"]));
fread($bare, unpack('N', fread($bare, 4))[1]);
$times = ['call' => [], 'bare' => []];
for ($i = 0; $i < (int) ($argv[1] ?? 20_000); $i++) {
    $began = hrtime(true);
    $client->hit('api', ['user' => 'u1'])->reason === null || exit("degraded\n");
    $times['call'][] = hrtime(true) - $began;
    $frame = Wire::frame(Wire::HIT, hrtime(true), $elements);
    $began = hrtime(true);
    fwrite($bare, $frame);
    fread($bare, unpack('N', fread($bare, 4))[1]);
    $times['bare'][] = hrtime(true) - $began;
}
sort($times['call']);
sort($times['bare']);
[$call, $plain] = [$times['call'][$i >> 1] / 1e3, $times['bare'][$i >> 1] / 1e3];
printf("p50 of a call %.1f µs, of the same bytes over a bare stream %.1f µs: %.2f times\n", $call, $plain, $call / $plain);
proc_terminate($daemon);
proc_close($daemon);
array_map(unlink(...), glob("$folder/*"));
rmdir($folder);
