<?php

// The client against the real daemon.

declare(strict_types=1);

use Tidegate\Decision;
use Tidegate\Denied;

require_once __DIR__ . '/support.php';

final class DaemonTest extends Base
{
    private const RULES = <<<'YAML'
        domain: api
        concurrency:
          - {name: at-once, match: {job: export}, key: [], max: 2, expires: 1h}
        limits:
          - {name: per-user, match: {job: message}, key: [user], rate: 1/h, burst: 2}
          - {name: tokens, match: {job: model}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}
        YAML;

    public function testLimitsChargesRefundsAndRepeatsAsTheRulesSay(): void
    {
        $path = folder() . '/s';
        $this->daemon($path, self::RULES);
        $client = $this->client($path, pool: 'php', slots: 2);
        $message = ['job' => 'message', 'user' => 7];
        $first = $client->hit('api', $message, idem: 'order-17');
        $this->assertSame([true, false, 'per-user', 2, 1], [$first->allowed, $first->degraded, $first->rule, $first->limit, $first->remaining]);
        $this->assertSame(1, $client->hit('api', $message, idem: 'order-17')->remaining);
        $this->assertSame(0, $client->hit('api', $message)->remaining);
        $refused = $client->hit('api', $message);
        $this->assertTrue($refused->status === 429 && $refused->retryAfter > 0 && $refused->retryAfter <= 3_600);
        $this->assertSame('Over the limit per-user of 1 request an hour.', substr($refused->message(), 0, 45));
        $this->assertMatchesRegularExpression('/"domain":"api","digest":"[0-9a-f]{32}"/', $refused->problem());
        $this->assertNull($client->hit('api', $message, 3)->retryAfter);
        $this->assertSame('limit', $client->hit('api', $message, PHP_INT_MAX)->verdict);
        $this->assertSame('limit', $client->hit('api', $message + ['a' => str_repeat('x', 5_000)])->verdict);
        foreach ([['another', false], [$first, true], [$first, false]] as [$of, $done]) {
            $this->assertSame($done, $client->charge('api', $message, -1, of: $of));
        }
        $this->assertSame(1, $client->peek('api', $message)->remaining);
        $this->assertFalse($client->charge('api', $message, -1));
        $this->assertSame(1, $client->stats()['refused']['not_allowed']);
        $this->assertTrue($client->charge('api', ['job' => 'model'], ['tokens' => 812]));
        $left = $client->peek('api', ['job' => 'model'], ['tokens' => 1]);
        $this->assertSame([188, 'tokens'], [$left->remaining, $left->unit]);
        $this->assertTrue($client->check());
    }

    public function testHoldsConcurrencyAcrossARestartOfTheDaemonAndExits(): void
    {
        $path = folder() . '/s';
        $daemon = $this->daemon($path, self::RULES);
        $client = $this->client($path);
        $export = ['job' => 'export'];
        $first = $client->acquire('api', $export);
        $this->assertTrue($first->renew());
        $client->limit('api', $export, fn () => $this->assertFalse($client->acquire('api', $export)->allowed));
        $this->assertTrue(($second = $client->acquire('api', $export))->allowed);
        try {
            $client->limit('api', $export, fn () => $this->fail());
            $this->fail();
        } catch (Denied $denied) {
            $this->assertSame('at-once', $denied->decision->rule);
        }
        $first->release();
        $second->release();
        $hold = sprintf('require %s; (new Tidegate\Client(%s, timeout: 9.0))->acquire("api", ["job" => "export"])->allowed || exit(7); posix_kill(getmypid(), SIGKILL);',
            var_export(realpath(__DIR__ . '/../Tidegate.php'), true), var_export($path, true));
        foreach ([1, 2, 3] as $killed) { // a killed process holds no lease
            exec('exec ' . PHP_BINARY . ' -r ' . escapeshellarg($hold), $lines, $code);
            $this->assertNotSame(7, $code);
            until(static fn (): bool => $client->peek('api', $export)->remaining === 2);
        }
        ($daemon->stop)(SIGKILL);
        $this->assertTrue($client->acquire('api', $export)->degraded);
        $this->daemon($path, self::RULES);
        until(static fn (): bool => !$client->acquire('api', $export)->degraded);
        $this->assertMatchesRegularExpression('/no daemon at .*refused.*\ntidegate: the daemon answers again$/', implode("\n", $this->lines));
    }
}
