<?php

// The socket of the client, the bytes on it, and the encoding of requests.

declare(strict_types=1);

namespace Tidegate;

use function array_key_exists, array_slice, chr, count, fclose, fread, ftell, fwrite, hrtime, implode, in_array, intdiv,
    is_array, is_int, is_object, is_resource, is_string, max, min, ord, pack, preg_match, restore_error_handler,
    set_error_handler, str_contains, stream_get_meta_data, stream_set_timeout, strlen, substr, unpack;

/**
 * A stream to the daemon, one request at a time. A persistent stream outlives the PHP request, this object does not. After
 * any error the stream is closed and never reused. @internal
 */
final class Connection
{
    private const GRACE = 2_000_000; // ns for the reply, if this process used up the deadline before it wrote the request
    private const PATH_BYTES_MAX = 107;
    private const WAIT = 1_000; // us of one wait: PHP starts a longer one anew after each signal, without end
    private const HTTP = 0x48545450; // the letters
    private const UNPROVED_MAX = 512;
    private const ENOENT = 2, EPERM = 1, EAGAIN = 11, EACCES = 13, ECONNREFUSED = 111;
    private const BUSY = 8, FORBIDDEN = 9, INTERNAL = 10;
    private const KEPT_OPEN = [5, 6, 7, 10, 11]; // errors of one request: the rest of the connection is not doubtful

    /** @var ?array<string, resource> streams in the middle of a call; null before the first connection of the PHP request */
    private static ?array $busy = null;
    /** Whether an earlier PHP request of this worker made the stream; then its session is unknown. */
    public readonly bool $inherited;
    /** @var resource */
    private $stream;
    private readonly string $name;
    private string $greeting = ''; // HELLO, sent with the first request: saves a round trip
    private bool $leaving = false; // after a GOODBYE
    private bool $welcome = false; // after a WELCOME
    /** @var list<int> ids of requests whose RELEASE the daemon may not have read */
    private array $unproved = [];
    private array $abandoned = [];

    /** @param ?int $key tells persistent streams apart; null: not persistent */
    public function __construct(private readonly string $path, ?int $key, float $seconds, public readonly int $number,
        object $info)
    {
        if (self::$busy === null) {
            self::$busy = [];
            // Registered in the end, so that it runs after the application's functions, which may release leases.
            register_shutdown_function(static fn () => register_shutdown_function(self::endRequest(...)));
        }
        $key = isset(self::$busy["$path $key"]) || !function_exists('pfsockopen') ? null : $key;
        $stream = $this->connect($key, $seconds);
        if (ftell($stream) > 0 && self::hasUnread($stream)) {
            fclose($stream);
            $stream = $this->connect($key, $seconds);
        }
        stream_set_timeout($stream, 0, self::WAIT);
        $this->stream = $stream;
        $this->name = $key === null ? '#' . (int) $stream : "$path $key";
        $this->inherited = ftell($stream) > 0; // counts all bytes that were written and read
        if (!$this->inherited) {
            $this->greeting = Wire::frame(Wire::HELLO, 0, ["\x01", Wire::encode($info)]);
        }
    }

    public function isOpen(): bool
    {
        return !$this->leaving && is_resource($this->stream);
    }

    /** True inside a call, from which a signal handler may make another. */
    public function isBusy(): bool
    {
        return isset(self::$busy[$this->name]);
    }

    /** Closes without `shutdown`, which would also end the parent's connection after a fork. */
    public function close(): void
    {
        if (is_resource($this->stream)) {
            fclose($this->stream);
        }
        $this->giveUp($this->unproved);
        $this->unproved = [];
    }

    /** Returns requests to report, once. */
    public function takeAbandoned(): array
    {
        [$abandoned, $this->abandoned] = [$this->abandoned, []];
        return $abandoned;
    }

    /**
     * Writes a request and returns what `$read(elements after the id, connection, id)` makes of its reply; or, as a Fault,
     * an error that keeps the connection open.
     *
     * @throws Fault after which the connection is closed
     */
    public function ask(int $op, array $elements, int $deadline, \Closure $read): mixed
    {
        $id = hrtime(true); // unique on the connection, also among requests of earlier PHP requests
        $kind = $op === Wire::ACQUIRE || $op === Wire::HIT || $op === Wire::PEEK ? Wire::DECISION : Wire::DONE;
        $done = false;
        $isUnread = false;
        self::$busy[$this->name] = $this->stream;
        set_error_handler(static fn (): bool => true); // errors of the stream are no errors of the application
        try {
            $this->write(Wire::frame($op, $id, $elements), $deadline);
            $reply = $this->reply($id, $kind, max($deadline, hrtime(true) + self::GRACE));
            $answer = is_array($reply) ? $read($reply, $this, $id) : $reply;
            $done = true;
            return $answer;
        } catch (Fault $fault) {
            $isUnread = $fault->again || $fault->full;
            throw $fault;
        } finally { // also after an exception of a signal handler
            restore_error_handler();
            unset(self::$busy[$this->name]);
            if (!$done) {
                $this->giveUp($op === Wire::ACQUIRE && !$isUnread ? [$id] : []);
                $this->close();
            } elseif ($this->leaving) {
                $this->close();
            }
        }
    }

    /** Writes a RELEASE; false if it cannot. */
    public function release(array $elements, int $id): bool
    {
        try {
            $this->send(Wire::RELEASE, $elements);
        } catch (Fault) {
            return false;
        }
        $this->unproved = array_slice([...$this->unproved, $id], -self::UNPROVED_MAX);
        return true;
    }

    /** Writes a frame without a reply. */
    public function send(int $op, array $elements): void
    {
        set_error_handler(static fn (): bool => true);
        try {
            $this->write(Wire::frame($op, null, $elements), hrtime(true) + self::GRACE);
        } catch (Fault $fault) {
            $this->close();
            throw $fault;
        } finally {
            restore_error_handler();
        }
    }

    /** Ends what a PHP request leaves that ended inside a call, or before it released its leases. */
    public static function endRequest(): void
    {
        foreach (self::$busy as $stream) {
            is_resource($stream) && fclose($stream);
        }
        self::$busy = [];
        Lease::releaseAll();
    }

    /** @return resource */
    private function connect(?int $key, float $seconds)
    {
        if (strlen($this->path) > self::PATH_BYTES_MAX || str_contains($this->path, "\0")) {
            throw new Fault("no daemon at $this->path: not a path of 107 bytes at most", 'unreachable');
        }
        set_error_handler(static fn (): bool => true);
        try {
            // A port of a Unix socket is only part of the stream's name.
            $stream = $key === null ? stream_socket_client("unix://$this->path", $code, $text, $seconds)
                : pfsockopen("unix://$this->path", -1 - $key, $code, $text, $seconds);
            if ($stream !== false) {
                return $stream;
            }
            if ($code === self::EAGAIN) {
                $text = "the daemon at $this->path takes no connections: it is stopped or overloaded";
                throw new Fault($text, 'unreachable', full: true);
            }
            if ($code === self::EACCES || $code === self::EPERM) {
                $name = static fn (string $kind, int|false $id): int|string|false =>
                    function_exists("posix_get$kind") ? "posix_get$kind"($id)['name'] ?? $id : $id;
                $user = function_exists('posix_geteuid') ? $name('pwuid', posix_geteuid()) : get_current_user();
                $text = "permission denied on $this->path: user $user is not in group {$name('grgid', filegroup($this->path))}";
                throw new Fault($text, 'unreachable');
            }
            if ($code === self::ECONNREFUSED && (is_file($this->path) || is_dir($this->path))) {
                throw new Fault("$this->path is no socket: set TIDEGATE_SOCKET to that of the daemon", 'unreachable', absent: true);
            }
            $text = "no daemon at $this->path ($text): start it with `tidegate serve`, or set TIDEGATE_SOCKET";
            throw new Fault($text, 'unreachable', absent: $code === self::ENOENT || $code === self::ECONNREFUSED);
        } finally {
            restore_error_handler();
        }
    }

    /**
     * Whether there are bytes before a request, or may be, if a signal interrupts: a GOODBYE, the end, or the reply to a
     * request that did not wait for it.
     *
     * @param resource $stream
     */
    private static function hasUnread($stream): bool
    {
        [$read, $none] = [[$stream], null];
        set_error_handler(static fn (): bool => true);
        try {
            return stream_select($read, $none, $none, 0) !== 0;
        } finally {
            restore_error_handler();
        }
    }

    private function write(string $frame, int $deadline): void
    {
        for ($bytes = $this->greeting . $frame, $sent = 0; true; $bytes = substr($bytes, $sent)) {
            $sent = (int) fwrite($this->stream, $bytes);
            if ($sent === strlen($bytes)) {
                break;
            }
            if ($sent === 0 && !stream_get_meta_data($this->stream)['timed_out']) {
                // A daemon that closed before HELLO has no room.
                throw new Fault('the daemon hung up', 'unreachable', again: $this->greeting === '', full: $this->greeting !== '');
            }
            if (hrtime(true) >= $deadline) {
                throw new Fault('the daemon does not read', 'timeout');
            }
        }
        $this->greeting = '';
    }

    private function reply(int $id, int $kind, int $deadline): array|Fault
    {
        while (true) {
            $size = unpack('N', $this->bytes(4, $deadline))[1];
            if ($size === self::HTTP) {
                throw new Fault('the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it');
            }
            if ($size > Wire::FRAME_MAX) {
                throw new Fault("malformed frame of $size bytes");
            }
            $reply = Wire::decode($this->bytes($size, $deadline));
            [$what, $about, $code] = $reply + [null, null, null];
            $hello = $about === 0 && !$this->welcome;
            if ($what === $kind && $about === $id) {
                $this->unproved = [];
                // Further bytes are a GOODBYE, or doubtful.
                $this->leaving = $this->leaving || stream_get_meta_data($this->stream)['unread_bytes'] > 0;
                return array_slice($reply, 2);
            }
            if ($what === Wire::GOODBYE) {
                $this->leaving = true;
            } elseif ($this->inherited && is_int($about) && $about > 0 && $about < $id && $what !== Wire::WELCOME) {
                // The late reply to a request that ended before it: its lease has no owner.
                if ($what === Wire::DECISION && is_int($reply[9] ?? null)) {
                    $this->write(Wire::frame(Wire::RELEASE, null, [Wire::encode($reply[9]), "\x02"]), $deadline);
                }
            } elseif ($what === Wire::WELCOME && $hello && $code === 1) {
                $this->welcome = true;
            } else {
                $text = substr((string) json_encode(array_slice($reply, 2), JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE), 0, 200);
                // An ERROR with the id of no request is doubtful; without an id it is about the connection.
                $concerns = $about === $id || $hello
                    || ($about === null && ($code === self::FORBIDDEN || !isset(Fault::REFUSALS[$code])));
                $isError = $what === Wire::ERROR && is_int($code) && $concerns;
                $fault = new Fault('the daemon answered ' . (is_int($what) ? $what : '?') . ": $text",
                    $isError ? Fault::REFUSALS[$code] ?? 'protocol' : 'protocol',
                    kept: $isError && $about === $id && in_array($code, self::KEPT_OPEN, true),
                    full: $isError && $code === self::BUSY);
                $this->leaving = $this->leaving || ($fault->kept && $code === self::INTERNAL); // the daemon closes
                return $fault->kept ? $fault : throw $fault;
            }
        }
    }

    /** Reads exactly `$size` bytes. After the deadline, reads once more, for 1 ms. */
    private function bytes(int $size, int $deadline): string
    {
        for ($data = '', $isLate = false; ($missing = $size - strlen($data)) > 0; $data .= $chunk) {
            $chunk = (string) fread($this->stream, $missing);
            if (strlen($chunk) === $missing) {
                return $data . $chunk;
            }
            if ($chunk === '' && !stream_get_meta_data($this->stream)['timed_out']) {
                throw new Fault('the daemon hung up', 'unreachable', again: $this->leaving);
            }
            if ($isLate) {
                throw new Fault('the daemon did not answer in time', 'timeout');
            }
            $isLate = hrtime(true) >= $deadline;
        }
        return $data;
    }

    /** @param list<int> $ids */
    private function giveUp(array $ids): void
    {
        foreach ($this->inherited ? [] : $ids as $id) {
            $this->abandoned[] = [$this->number, $id];
        }
    }
}

/** An unsendable request, a failed exchange or an invalid reply. @internal */
final class Fault extends \Exception
{
    /** Errors of the daemon that refuse; all others are failures of the daemon. */
    public const REFUSALS = [6 => 'invalid', 7 => 'quota', 9 => 'forbidden', 11 => 'not_allowed'];

    /**
     * @param string $reason under which it is counted
     * @param bool $again the daemon did not process the request
     * @param bool $full it accepts no further connection
     * @param bool $kept the connection stays open
     * @param bool $absent no process listens
     */
    public function __construct(string $text, public readonly string $reason = 'protocol', public readonly bool $again = false,
        public readonly bool $full = false, public readonly bool $kept = false, public readonly bool $absent = false)
    {
        parent::__construct($text);
    }
}

/** A request as it is sent. @internal */
final readonly class Request
{
    private const ID_ROOM = 11; // array, op and the longest id
    private const DIGESTED = 33; // bytes of a value that is only its digest

    public array $options;

    /**
     * @param list<list<string>> $descriptors each name, value, name, …
     * @param int|array<string, int> $cost
     * @param array<string, mixed> $options null: none
     */
    public function __construct(public int $op, public string $domain, public array $descriptors, public int|array $cost,
        public ?string $priority, array $options)
    {
        $this->options = $options === [] ? [] : array_filter($options, static fn (mixed $value): bool => $value !== null);
    }

    /**
     * Encodes the elements after the id, without trailing nils; replaces the longest values by digests until they fit.
     *
     * @param array{missed?: array<string, int>, abandoned?: list<array{int, int}>} $report
     * @return list<string>
     */
    public function elements(array $report = []): array
    {
        $options = $this->options + $report;
        if (isset($report['missed'])) {
            $options['missed'] = (object) $report['missed'];
        }
        if ($this->op === Wire::CHARGE) {
            $rest = $options === [] ? [] : [(object) $options];
        } else {
            $priority = $this->priority === null && $options === [] ? [] : [$this->priority];
            $rest = $options === [] ? $priority : [...$priority, (object) $options];
        }
        $cost = is_array($this->cost) ? (object) $this->cost : $this->cost;
        for ($descriptors = $this->descriptors;;) {
            $elements = [];
            foreach ([$this->domain, $descriptors, $cost, ...$rest] as $value) {
                $elements[] = Wire::encode($value);
            }
            if (strlen(implode('', $elements)) <= Wire::FRAME_MAX - self::ID_ROOM) {
                return $elements;
            }
            [$at, $size] = [null, self::DIGESTED];
            foreach ($descriptors as $i => $one) {
                foreach ($one as $j => $text) {
                    if ($j % 2 === 1 && strlen($text) > $size) {
                        [$at, $size] = [[$i, $j], strlen($text)];
                    }
                }
            }
            $at ?? throw new Fault('a request does not fit into a frame', 'invalid');
            $descriptors[$at[0]][$at[1]] = Wire::digest($descriptors[$at[0]][$at[1]], 0);
        }
    }
}

/** A `bin` of MessagePack. @internal */
final readonly class Bytes
{
    public function __construct(public string $raw)
    {
    }
}

/**
 * MessagePack within the limits of the protocol. A `map` is an object, a `bin` is Bytes, an integer from 2^63 on is read as
 * a float. Uses no socket and no clock. @internal
 */
final class Wire
{
    public const HELLO = 0, ACQUIRE = 1, RELEASE = 2, HIT = 3, PEEK = 4, CHARGE = 5, RENEW = 6, SIGNAL = 7, PING = 8;
    public const WELCOME = 0, DECISION = 1, DONE = 2, ERROR = 3, GOODBYE = 4;
    public const FRAME_MAX = 16_384, PAIRS_MAX = 16;
    private const VALUE_MAX = 1_024, VALUE_KEPT = 960, NAME_MAX = 64, IDEM_MAX = 64, IDEM_KEPT = 30;
    private const DESCRIPTORS_MAX = 8, DEPTH_MAX = 4;

    /** Encodes a value as the shortest MessagePack. */
    public static function encode(mixed $value): string
    {
        if (is_string($value)) {
            $size = strlen($value);
            return match (true) {
                $size < 32 => chr(0xa0 | $size),
                $size < 0x100 => "\xd9" . chr($size),
                default => "\xda" . pack('n', $size),
            } . $value;
        }
        if (is_int($value)) {
            return match (true) {
                $value >= 0x1_0000_0000 => "\xcf" . pack('J', $value),
                $value >= 0x1_0000 => "\xce" . pack('N', $value),
                $value >= 0x100 => "\xcd" . pack('n', $value),
                $value >= 0x80 => "\xcc" . chr($value),
                $value >= -32 => chr($value & 0xff),
                $value >= -0x80 => "\xd0" . chr($value & 0xff),
                $value >= -0x8000 => "\xd1" . pack('n', $value),
                $value >= -0x8000_0000 => "\xd2" . pack('N', $value),
                default => "\xd3" . pack('J', $value),
            };
        }
        if (is_array($value)) {
            $count = count($value);
            $data = $count < 16 ? chr(0x90 | $count) : "\xdc" . pack('n', $count);
            foreach ($value as $entry) {
                $data .= self::encode($entry);
            }
            return $data;
        }
        if ($value instanceof Bytes) {
            return "\xc4" . chr(strlen($value->raw)) . $value->raw; // at most 64
        }
        if (is_object($value)) {
            $entries = (array) $value;
            $count = count($entries);
            $data = $count < 16 ? chr(0x80 | $count) : "\xde" . pack('n', $count);
            foreach ($entries as $name => $entry) {
                $data .= self::encode((string) $name) . self::encode($entry);
            }
            return $data;
        }
        return $value === null ? "\xc0" : ($value ? "\xc3" : "\xc2");
    }

    /**
     * Encodes a frame; `$id` null: the daemon sends no reply.
     *
     * @param list<string> $elements encoded
     */
    public static function frame(int $op, ?int $id, array $elements): string
    {
        $payload = chr(0x92 + count($elements)) . chr($op) . self::encode($id) . implode('', $elements);
        return pack('N', strlen($payload)) . $payload;
    }

    /**
     * Decodes exactly one array.
     *
     * @throws Fault for anything that the protocol forbids
     */
    public static function decode(string $data): array
    {
        $at = 0;
        $message = self::value($data, $at, self::DEPTH_MAX);
        if (!is_array($message) || $at !== strlen($data)) {
            self::malformed();
        }
        return $message;
    }

    public static function isName(string $name): bool
    {
        return strlen($name) <= self::NAME_MAX && preg_match('/^[^\x00-\x1f\x7f-\x{9f}:\/]+$/Du', $name) === 1;
    }

    public static function name(string $name): string
    {
        return self::isName($name) ? $name
            : throw new Fault("a name is text of 1 to 64 bytes without control characters, ':' and '/'", 'invalid');
    }

    /**
     * Checks a cost or, if `$signed`, an amount.
     *
     * @throws \ValueError|\TypeError a programmer's error
     */
    public static function cost(int|array $cost, bool $signed = false): int|array
    {
        $isList = is_array($cost) && $cost !== [] && array_is_list($cost); // no rule would check its units 0, 1, …
        foreach (is_array($cost) ? $cost : [$cost] as $n) {
            is_int($n) && !$isList || throw new \TypeError('a cost is an integer, or integers by unit');
            if ($n < 0 && !$signed) {
                throw new \ValueError('a cost is 0 or more; help: refund with charge(…, -1, of: $decision)');
            }
        }
        return $cost;
    }

    /**
     * Converts attributes to texts.
     *
     * @return list<list<string>>
     * @throws Fault for values that cannot be sent
     */
    public static function describe(iterable $attributes): array
    {
        $isSeveral = is_array($attributes) && $attributes !== [] && array_is_list($attributes) && is_iterable($attributes[0]);
        $descriptors = [];
        foreach ($isSeveral ? $attributes : [$attributes] as $one) {
            $texts = [];
            foreach (is_iterable($one) ? $one : throw new \TypeError('descriptors are arrays') as $name => $value) {
                $name = is_scalar($name) ? (string) $name : ''; // of a generator it may be an object
                $text = is_string($value) ? $value : self::text($value, $name);
                if ($text !== '') {
                    $text = self::valid($text);
                    $texts[] = self::name($name);
                    $texts[] = strlen($text) > self::VALUE_MAX ? self::digest($text, self::VALUE_KEPT) : $text;
                    count($texts) <= 2 * self::PAIRS_MAX || throw new Fault('more than 16 attributes', 'invalid');
                }
            }
            $descriptors[] = $texts;
        }
        return count($descriptors) <= self::DESCRIPTORS_MAX ? $descriptors : throw new Fault('more than 8 descriptors', 'invalid');
    }

    /** Returns an idempotency key, shortened by a digest above 64 bytes; null if it is absent or empty. */
    public static function idem(?string $idem): string|Bytes|null
    {
        if ($idem === null || $idem === '') {
            return null;
        }
        $isText = preg_match('//u', $idem) === 1;
        $idem = strlen($idem) <= self::IDEM_MAX ? $idem : self::digest($idem, self::IDEM_KEPT, $isText);
        return $isText ? $idem : new Bytes($idem);
    }

    public static function micros(?float $seconds): ?int
    {
        is_finite($seconds ?? 0.0) || throw new \ValueError('queued and maxWait are seconds');
        // 0.00007 * 1e6 is above 70
        return $seconds === null ? null : (int) min(max(ceil(round($seconds * 1e9) / 1e3), 0.0), 2.0 ** 62);
    }

    /** Returns at most `$kept` bytes, up to the end of a character, and the digest of the whole text. */
    public static function digest(string $text, int $kept, bool $isText = true): string
    {
        while ($isText && $kept > 0 && (ord($text[$kept]) & 0xc0) === 0x80) {
            $kept--;
        }
        return substr($text, 0, $kept) . '~' . substr(hash('sha256', $text), 0, 32);
    }

    /** Throws a ValueError, which names the option and the value, if that is none of the words. */
    public static function checkWord(string $option, string $given, string ...$words): void
    {
        in_array($given, $words, true) || throw new \ValueError("$option is " . implode(' or ', $words) . ', not "' . substr($given, 0, 99) . '"');
    }

    private static function text(mixed $value, string $name): string
    {
        if ($value instanceof \Stringable) {
            try {
                return (string) $value;
            } catch (\Throwable $error) {
                throw new Fault("the attribute $name has no text: " . $error::class, 'invalid');
            }
        }
        return match (true) {
            $value === null => '',
            is_bool($value) => $value ? 'true' : 'false',
            is_scalar($value) => (string) $value,
            $value instanceof \BackedEnum => (string) $value->value,
            $value instanceof \DateTimeInterface => $value->format(\DateTimeInterface::RFC3339_EXTENDED),
            default => throw new Fault("the attribute $name has no text; help: send its id", 'invalid'),
        };
    }

    /** Replaces bytes that are not UTF-8. */
    private static function valid(string $text): string
    {
        return preg_match('//u', $text) === 1 ? $text
            : htmlspecialchars_decode(htmlspecialchars($text, ENT_NOQUOTES | ENT_SUBSTITUTE, 'UTF-8'), ENT_NOQUOTES);
    }

    /** Reads one value; `$depth`: levels left for nesting. */
    private static function value(string $data, int &$at, int $depth): mixed
    {
        $first = ord($data[$at++] ?? "\xc1");
        if ($first < 0x80) {
            return $first;
        }
        if ($first === 0xc0) {
            return null;
        }
        return match (true) {
            $first >= 0xcc && $first <= 0xcf => self::size($data, $at, 1 << $first - 0xcc),
            $first >= 0xe0 => $first - 0x100,
            $first < 0x90 => self::entries($data, $at, $first & 15, $depth, true),
            $first < 0xa0 => self::entries($data, $at, $first & 15, $depth, false),
            $first < 0xc0 => self::string($data, $at, $first & 31),
            $first === 0xc2, $first === 0xc3 => $first === 0xc3,
            $first >= 0xc4 && $first <= 0xc6 =>
                new Bytes(self::take($data, $at, self::size($data, $at, 1 << $first - 0xc4))),
            $first >= 0xd0 && $first <= 0xd2 => self::signed($data, $at, 1 << $first - 0xd0),
            $first === 0xd3 => unpack('J', self::take($data, $at, 8))[1],
            $first >= 0xd9 && $first <= 0xdb => self::string($data, $at, self::size($data, $at, 1 << $first - 0xd9)),
            $first === 0xdc, $first === 0xdd =>
                self::entries($data, $at, self::size($data, $at, 2 << $first - 0xdc), $depth, false),
            $first === 0xde, $first === 0xdf =>
                self::entries($data, $at, self::size($data, $at, 2 << $first - 0xde), $depth, true),
            default => self::malformed(),
        };
    }

    private static function take(string $data, int &$at, int $size): string
    {
        $at += $size;
        return $at <= strlen($data) ? substr($data, $at - $size, $size) : self::malformed();
    }

    private static function size(string $data, int &$at, int $width): int|float
    {
        $at += $width;
        if ($at > strlen($data)) {
            self::malformed();
        }
        return match ($width) {
            1 => ord($data[$at - 1]),
            2 => unpack('n', $data, $at - 2)[1],
            4 => unpack('N', $data, $at - 4)[1],
            8 => hexdec(bin2hex(substr($data, $at - 8, 8))), // a float from 2^63 on
        };
    }

    private static function signed(string $data, int &$at, int $width): int
    {
        $n = self::size($data, $at, $width);
        return $n < 1 << 8 * $width - 1 ? $n : $n - (1 << 8 * $width);
    }

    private static function string(string $data, int &$at, int $size): string
    {
        $text = self::take($data, $at, $size);
        return preg_match('//u', $text) === 1 ? $text : self::malformed();
    }

    private static function entries(string $data, int &$at, int $count, int $depth, bool $isMap): array|object
    {
        if ($depth === 0 || $count > strlen($data) - $at) { // an element takes a byte at least
            self::malformed();
        }
        $values = [];
        while ($count-- > 0) {
            if (!$isMap) {
                $first = $data[$at] ?? "\xc1";
                if ($first < "\x80" || $first === "\xc0") { // most values of a decision
                    $values[] = $first === "\xc0" ? null : ord($first);
                    $at++;
                } else {
                    $values[] = self::value($data, $at, $depth - 1);
                }
                continue;
            }
            $name = self::value($data, $at, $depth - 1);
            if (!is_string($name) || array_key_exists($name, $values)) {
                self::malformed();
            }
            $values[$name] = self::value($data, $at, $depth - 1);
        }
        return $isMap ? (object) $values : $values;
    }

    private static function malformed(): never
    {
        throw new Fault('malformed frame: not exactly one array of valid values');
    }
}
