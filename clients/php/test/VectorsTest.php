<?php

// The golden frames, the reference of the protocol, and the responses to HTTP callers.

declare(strict_types=1);

use Nyholm\Psr7\Factory\Psr17Factory;
use Nyholm\Psr7\Response;
use Nyholm\Psr7\ServerRequest;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\RequestHandlerInterface;
use Tidegate\Bytes;
use Tidegate\Client;
use Tidegate\Decision;
use Tidegate\Fault;
use Tidegate\Guard;
use Tidegate\Request;
use Tidegate\Seen;
use Tidegate\Wire;

require_once __DIR__ . '/support.php';

final class VectorsTest extends Base
{
    private const OPS = ['hello', 'acquire', 'release', 'hit', 'peek', 'charge', 'renew', 'signal', 'ping'];
    private const KINDS = ['welcome', 'decision', 'done', 'error', 'goodbye'];
    private const VERDICTS = ['allow', 'limit', 'shed', 'wait', 'deny'];
    private const OUTCOMES = ['ok', 'error', 'dropped'];
    private const CODES = ['', 'malformed', 'too_large', 'version', 'hello_required', 'unknown_op', 'invalid', 'quota', 'busy',
        'forbidden', 'internal', 'not_allowed'];

    /** Reads a file of vectors, its objects as objects; integers beyond those of PHP become floats. */
    private static function vectors(string $name): array
    {
        return json_decode(file_get_contents(ROOT . "/tests/vectors/$name"), false, flags: JSON_THROW_ON_ERROR);
    }

    /** Converts the form of the JSON to values of the codec. */
    private static function real(mixed $value): mixed
    {
        if (is_array($value)) {
            return array_map(self::real(...), $value);
        }
        if (is_object($value)) {
            return array_keys((array) $value) === ['bin'] ? new Bytes(hex2bin($value->bin)) : (object) array_map(self::real(...), (array) $value);
        }
        return $value;
    }

    /** Returns the array of a meaning: a request without trailing nils, a reply in full. */
    private static function messageOf(object $m): array
    {
        if (isset($m->kind)) {
            $kind = array_search($m->kind, self::KINDS, true);
            return [$kind, $m->id, ...match ($kind) {
                0 => [$m->version, $m->info],
                1 => [array_search($m->verdict, self::VERDICTS, true), $m->rule, $m->limit, $m->window_us, $m->remaining, $m->reset_us,
                    $m->retry_us, $m->lease, $m->notes === null ? null : array_merge(...$m->notes), $m->all, $m->extra],
                2 => [$m->ok],
                3 => [array_search($m->code, self::CODES, true), $m->message],
                4 => [$m->reason],
            }];
        }
        $some = static fn (object $map): ?object => (array) $map === [] ? null : $map;
        $message = [array_search($m->op, self::OPS, true), $m->id, ...match ($m->op) {
            'hello' => [$m->version, $some($m->info)],
            'release' => [$m->lease, array_search($m->outcome, self::OUTCOMES, true)],
            'renew' => [$m->lease],
            'signal' => [$m->pool, $m->name, $m->permille],
            'ping' => [],
            'charge' => [$m->domain, $m->descriptors, $m->amount, $some($m->options)],
            default => [$m->domain, $m->descriptors, $m->cost, $m->priority, $some($m->options)],
        }];
        while (end($message) === null && count($message) > 2) {
            array_pop($message);
        }
        return $message;
    }

    private static function hasFloat(mixed $value): bool
    {
        return is_float($value) || (is_iterable($value) || is_object($value))
            && array_filter((array) $value, self::hasFloat(...)) !== [];
    }

    public function testReadsEveryGoodFrameAndWritesEveryCanonicalOne(): void
    {
        [$written, $beyond] = [0, 0];
        foreach (self::vectors('good.json') as $vector) {
            $payload = substr(hex2bin($vector->hex), 4);
            $read = Wire::decode($payload);
            if (!$vector->canonical) {
                continue;
            }
            $message = self::real(self::messageOf($vector->meaning));
            $this->assertEquals($message, $read, $vector->name);
            if (self::hasFloat($message)) {
                $beyond++; // integers from 2^63 on, which no request of a client has
                continue;
            }
            $written++;
            $this->assertSame(bin2hex($payload), bin2hex(Wire::encode($message)), $vector->name);
        }
        $this->assertGreaterThan(100, $written);
        $this->assertLessThan(10, $beyond);
    }

    public function testEncodesRequestsFromWhatAnApplicationGives(): void
    {
        $written = 0;
        foreach (self::vectors('good.json') as $vector) {
            $m = $vector->meaning;
            $op = array_search($m->op ?? '', self::OPS, true);
            if (!$vector->canonical || $op === false || $op === Wire::HELLO || self::hasFloat($m) || $vector->name === 'hit_frame_largest') { // has a short id
                continue;
            }
            if (isset($m->domain)) {
                $given = [];
                foreach ($m->descriptors as $one) {
                    $given[] = (static function () use ($one) {
                        foreach (array_chunk($one, 2) as [$name, $value]) {
                            yield $name => $value;
                        }
                    })();
                }
                if ($given === [] || in_array('', array_merge(...$m->descriptors), true)) {
                    continue; // empty values are not sent
                }
                $cost = $m->cost ?? $m->amount;
                $cost = is_object($cost) ? (array) $cost : $cost;
                $options = array_map(self::real(...), (array) $m->options);
                $report = array_intersect_key($options, ['missed' => 0, 'abandoned' => 0]);
                $options = array_diff_key($options, $report);
                $report = array_map(static fn (mixed $one): array => (array) $one, $report);
                $request = new Request($op, $m->domain, Wire::describe($given), Wire::cost($cost, $op === Wire::CHARGE), $m->priority ?? null, $options);
                $elements = $request->elements($report);
            } else {
                $elements = array_map(Wire::encode(...), array_slice(self::real(self::messageOf($m)), 2));
            }
            $written++;
            $this->assertSame($vector->hex, bin2hex(Wire::frame($op, $m->id, $elements)), $vector->name);
        }
        $this->assertGreaterThan(50, $written);
    }

    public function testReadsTheFieldsOfEveryDecision(): void
    {
        $read = 0;
        $largest = 0;
        foreach (self::vectors('good.json') as $vector) {
            $m = $vector->meaning;
            if (($m->kind ?? '') !== 'decision') {
                continue;
            }
            $elements = array_slice(Wire::decode(substr(hex2bin($vector->hex), 4)), 2);
            $d = new Decision($elements);
            $seconds = static fn (int|float|null $us): ?float => $us === null ? null : $us / 1e6;
            $this->assertSame([$m->verdict, $m->rule], [$d->verdict, $d->rule], $vector->name);
            $this->assertEquals([$m->limit, $m->remaining], [$d->limit, $d->remaining], $vector->name);
            $this->assertSame(array_map($seconds, [$m->window_us, $m->reset_us, $m->retry_us]), [$d->window, $d->resetAfter, $d->retryAfter]);
            $this->assertSame($m->notes ?? [], $d->notes, $vector->name);
            $this->assertSame($m->extra->help ?? null, $d->help, $vector->name);
            $this->assertSame([$m->lease, true], [$elements[7] ?? null, $d->allowed === ($d->status === 200)], $vector->name);
            $largest = max($largest, $m->lease ?? 0);
            $read++;
        }
        $this->assertGreaterThan(20, $read);
        $this->assertSame(PHP_INT_MAX, $largest);
    }

    public function testRefusesMalformedFrames(): void
    {
        $refused = 0;
        foreach (self::vectors('bad.json') as $vector) {
            $bytes = hex2bin($vector->hex);
            if ($vector->code !== 'malformed' || strlen($bytes) < 5) {
                continue;
            }
            try {
                $message = Wire::decode(substr($bytes, 4, unpack('N', $bytes)[1]));
            } catch (Fault) {
                $refused++;
                continue;
            }
            // Only a reader of requests detects the rest: op or id is no unsigned integer.
            $isSmall = static fn (mixed $n): bool => is_int($n) && $n >= 0;
            $this->assertFalse($isSmall($message[0] ?? null) && $isSmall($message[1] ?? null), $vector->name);
        }
        $this->assertGreaterThan(25, $refused);
    }

    public function testAnswersHttpCallersAsEveryClient(): void
    {
        $answers = self::vectors('answers.json');
        foreach ($answers as $answer) {
            $request = new Request(Wire::ACQUIRE, $answer->domain ?? 'shop', [], 1, null, []);
            $shed = [2, null, null, null, null, null, 1_000_000];
            $d = $answer->reason !== null ? new Decision($answer->status === 200 ? [0] : $shed, $answer->reason)
                : new Decision(array_slice(Wire::decode(substr(hex2bin($answer->decision), 4)), 2), null, null, $request);
            $this->assertSame($answer->message, $d->message(), $answer->name);
            $hasDomain = isset($answer->domain) || !str_contains($answer->body ?? '', '"digest"');
            if ($answer->body !== null && $hasDomain) {
                $this->assertSame($answer->body, $d->problem(), $answer->name);
            }
            $guard = new Guard(new Client(enabled: false), headers: $answer->style);
            $seen = Seen::server([]);
            $headers = $d->allowed ? $guard->fields($d, $answer->status, []) : $guard->refusal($seen, $d)->headers;
            $found = array_map(static fn (string $name): array => [$name, $headers[$name]], array_keys($headers));
            if ($hasDomain) {
                $this->assertSame($answer->headers, $found, $answer->name);
            }
        }
        $this->assertGreaterThan(35, count($answers));
    }

    public function testNamesTheDomainBesideTheDigest(): void
    {
        $elements = [1, 'per-user', 40, 2_000_000, 0, 1, 1, null, null, null, (object) ['digest' => '5f0c']];
        $d = new Decision($elements, null, null, new Request(Wire::HIT, 'shop', [], 1, null, []));
        $this->assertStringContainsString('"window":2,"domain":"shop","digest":"5f0c","retry_after":0.001', $d->problem());
        $elements[10]->hide = true;
        $this->assertNull((new Decision($elements))->digest);
    }
}
