// What is written to the daemon and read from it: codec, requests, connections. What to make of it tidegate.go knows.

package tidegate

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

const ( // the protocol's bounds, operations and kinds of replies
	valueMax, valueKept, digested, frameMax, levelsMax        = 1_024, 960, 33, 16_384, 4
	opHello, opAcquire, opRelease, opHit, opPeek              = 0, 1, 2, 3, 4
	opCharge, opRenew, opSignal, opPing                       = 5, 6, 7, 8
	isWelcome, isDecision, isDone, isError, isGoodbye, silent = 0, 1, 2, 3, 4, 5
	glance, lastLook, lastLooks                               = 5 * time.Millisecond, 200 * time.Microsecond, 3
)

// A fault is what cannot be written or trusted: a word to count it by; again: the daemon has had nothing of the
// request; kept: the connection is as good as before. Inside this file it is thrown, and caught by `ask`.
type fault struct {
	text, reason string
	again, kept  bool
}

var errDoubt = &fault{text: "doubtful bytes", reason: "protocol"}
var errLate = &fault{text: "the daemon did not answer in time", reason: "timeout"}

// -- codec: MessagePack within the bounds of the protocol -------------------------------------------------------------
// A form is how a number or a size is written: in the first byte, or behind one of several, each for twice the width.
type form struct {
	short byte
	below uint64
	long  byte
	width int
}
type fields map[string]any

var aUint, anInt, anArray = form{0, 128, 0xCC, 1}, form{0, 32, 0xD0, 1}, form{0x90, 16, 0xDC, 2}
var aText, aBin, aMap = form{0xA0, 32, 0xD9, 1}, form{0, 0, 0xC4, 1}, form{0x80, 16, 0xDE, 2}

func when[T any](is bool, then, otherwise T) T {
	if is {
		return then
	}
	return otherwise
}
func (f form) append(b []byte, n int64) []byte {
	size, sign, code, width := uint64(when(n < 0, ^n, n)), when(n < 0, 1, 0), f.long, f.width
	if size < f.below {
		return append(b, f.short+byte(n))
	}
	for ; width < 8 && size>>(8*width-sign) > 0; width *= 2 {
		code++
	}
	for b = append(b, code); width > 0; width-- {
		b = append(b, byte(n>>(8*(width-1))))
	}
	return b
}

// encode appends the shortest MessagePack of what a request is made of; nil for all else.
func encode(b []byte, value any) []byte {
	switch v := value.(type) {
	case int64:
		return when(v < 0, anInt, aUint).append(b, v)
	case []byte:
		return append(aBin.append(b, int64(len(v))), v...)
	case string:
		v = strings.ToValidUTF8(v, "\uFFFD")
		return append(aText.append(b, int64(len(v))), v...)
	case []any:
		b = anArray.append(b, int64(len(v)))
		for _, one := range v {
			b = encode(b, one)
		}
		return b
	case Units:
		return encodeMap(b, v)
	case fields:
		return encodeMap(b, v)
	}
	return append(b, 0xC0)
}
func encodeMap[V any](b []byte, m map[string]V) []byte {
	b = aMap.append(b, int64(len(m)))
	for name, one := range m {
		b = encode(encode(b, name), one)
	}
	return b
}

// What first bytes from 0xC0 on begin, and how many bytes of number follow.
const firsts, widths = "n?bbxxx?????uuuuiiii?????sssaamm", "00001240000012481248000001242424"

// decode reads one value and returns what follows. It panics at whatever the protocol forbids.
func decode(data []byte, levels int) (any, []byte) {
	c, kind, n, width := data[0], byte('i'), uint64(int8(data[0])), 0
	switch data = data[1:]; {
	case c < 0x80:
		kind = 'u'
	case c < 0xA0:
		kind, n = "ma"[c>>4&1], uint64(c&15)
	case c < 0xC0:
		kind, n = 's', uint64(c&31)
	case c < 0xE0:
		kind, n, width = firsts[c-0xC0], 0, int(widths[c-0xC0]-'0')
	}
	for _, b := range data[:width] {
		n = n<<8 | uint64(b)
	}
	switch data = data[width:]; {
	case kind == 'n':
		return nil, data
	case kind == 'b':
		return c == 0xC3, data
	case kind == 'i' && int64(n<<((64-8*width)%64)) < 0: // what was written as signed may be positive
		unused := (64 - 8*width) % 64
		return int64(n<<unused) >> unused, data
	case kind == 'u' || kind == 'i':
		return n, data
	case kind == 'x':
		return data[:n], data[n:]
	case kind == 's' && utf8.Valid(data[:n]):
		return string(data[:n]), data[n:]
	case kind == 'a' && levels > 0:
		list := make([]any, len(data[:n]), n+1) // an element takes a byte at least
		for i := range list {
			list[i], data = decode(data, levels-1)
		}
		return list, data
	case kind == 'm' && levels > 0:
		found := make(fields, len(data[:n]))
		for i := len(data[:n]); i > 0; i-- {
			key, rest := decode(data, 0)
			found[key.(string)], data = decode(rest, levels-1)
		}
		if uint64(len(found)) == n { // no key twice
			return found, data
		}
	}
	panic(errDoubt)
}

// or is v, or something else if v is nil. It panics at any other type.
func or[T any](v any, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return v.(T)
}

// -- request: what is asked, within the bounds of the protocol --------------------------------------------------------
// Attributes are names and values, in this order. A value that is nil or empty is not sent, others become text.
type Attributes [][2]any

// Units are amounts in several units at once, such as {"requests": 1, "tokens": 800}.
type Units map[string]int64

// A CallOption says more about one request.
type CallOption func(*request)

// Cost is how much is asked for, if not 1.
func Cost(n int64) CallOption { return func(q *request) { q.cost = n } }

// Costs is Cost in several units; a rule is judged in its own, and not at all when that is not among them.
func Costs(units Units) CallOption { return func(q *request) { q.cost = units } }

// Priority names how important this is; never take it from an end user's header.
func Priority(name string) CallOption { return func(q *request) { q.priority = name } }

// Idem makes a repeat within 60 s free; never take it from an end user's header: who repeats it is charged once.
func Idem(key string) CallOption {
	return func(q *request) {
		if key != "" {
			q.say("idem", []byte(key))
		}
	}
}

// Queued is how long the request has waited for the application already.
func Queued(d time.Duration) CallOption { return func(q *request) { q.say("queued_us", micros(d)) } }

// MaxWait is how long a WAIT may be; 0: be refused instead.
func MaxWait(d time.Duration) CallOption { return func(q *request) { q.say("max_wait_us", micros(d)) } }

// Descriptors are judged besides the first.
func Descriptors(more ...Attributes) CallOption {
	return func(q *request) { q.descriptors = append(q.descriptors, more...) }
}

// RefuseOnFailure refuses, with status 503, what could not be judged.
func RefuseOnFailure() CallOption { return func(q *request) { q.refuse = true } }

type request struct {
	ctx           context.Context
	deadline      time.Time
	op            byte
	refuse        bool
	wanted, count int // the kind of its reply, or silent; how many elements stand behind the id, which are
	cost          any
	priority      string
	options       fields
	descriptors   []Attributes
	body          []byte
	decision      *Decision
}

var requests = sync.Pool{New: func() any { return &request{} }}

func newRequest(ctx context.Context, op byte, wanted int, a Attributes) *request {
	q := requests.Get().(*request)
	*q = request{ctx: ctx, op: op, wanted: wanted, cost: int64(1), descriptors: []Attributes{a}, body: q.body}
	return q
}
func (q *request) say(name string, value any) {
	if q.options == nil {
		q.options = fields{}
	}
	q.options[name] = value
}
func micros(d time.Duration) int64 { return up(d, time.Microsecond) }

// up is d in whole units, rounded up.
func up(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}

// judge writes a judgement, without nils at its end. What is out of bounds the daemon tells from what is not.
func (q *request) judge(domain string) {
	descriptors := make([]any, len(q.descriptors))
	for i, attributes := range q.descriptors {
		pairs := make([]any, 0, 2*len(attributes))
		for _, pair := range attributes {
			if value := text(pair[1]); value != "" {
				pairs = append(pairs, text(pair[0]), value)
			}
		}
		descriptors[i] = pairs
	}
	elements := []any{domain, descriptors, q.cost, when[any](q.priority == "", nil, q.priority), q.options}
	q.write(elements[:when(len(q.options) > 0, 5, when(q.priority != "", 4, 3))]...)
	for len(q.body) > frameMax-11 { // beside the op and the longest id; else the longest value is shortened
		pairs, longest, size := []any(nil), 0, digested
		for _, descriptor := range descriptors {
			for i, one := range descriptor.([]any) {
				if i%2 == 1 && len(one.(string)) > size {
					pairs, longest, size = descriptor.([]any), i, len(one.(string))
				}
			}
		}
		if pairs == nil {
			panic(&fault{text: "it does not fit into a frame", reason: "protocol"})
		}
		pairs[longest] = shorten(pairs[longest].(string), 0)
		q.write(elements[:q.count]...)
	}
}
func (q *request) write(elements ...any) {
	q.body, q.count = q.body[:0], len(elements)
	for _, element := range elements {
		q.body = encode(q.body, element)
	}
}

// text is an attribute as it is sent.
func text(value any) (s string) {
	switch v := value.(type) {
	case nil:
	case string:
		s = v
	case []byte:
		s = string(v)
	default:
		if pointer := reflect.ValueOf(value); pointer.Kind() == reflect.Pointer {
			if pointer.IsNil() {
				return ""
			}
			switch value.(type) {
			case fmt.Stringer, error:
			default: // its address would be another key every time
				value = pointer.Elem().Interface()
			}
		}
		s = fmt.Sprint(value)
	}
	if len(s) > valueMax {
		return shorten(s, valueKept)
	}
	return s
}

// shorten keeps the beginning, and the digest of the whole.
func shorten(s string, kept int) string {
	for ; kept > 0 && !utf8.RuneStart(s[kept]); kept-- {
	}
	digest := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%s~%x", s[:kept], digest[:16])
}

// -- reply and connection: one request at a time; after any doubt it is closed, never used again ----------------------
// read takes the elements behind the id. It panics at what cannot be.
func (d *Decision) read(given []any) {
	var e [11]any
	copy(e[:], given)
	duration := func(v any) time.Duration { // at most what Go has, 292 years
		if us := or(v, uint64(0)); us < math.MaxInt64/1_000 {
			return time.Duration(us) * time.Microsecond
		}
		return math.MaxInt64
	}
	verdict := e[0].(uint64)
	d.Verdict = [...]string{"allow", "limit", "shed", "wait", "deny"}[verdict]
	d.Status = [...]int{200, 429, 503, 200, 403}[verdict]
	d.Allowed, d.HasLimit, d.Rule = d.Status == 200, e[2] != nil, or(e[1], "")
	d.Limit, d.Remaining, d.Lease = or(e[2], uint64(0)), or(e[4], uint64(0)), or(e[7], uint64(0))
	d.Window, d.ResetAfter, d.RetryAfter = duration(e[3]), duration(e[5]), duration(e[6])
	if d.Verdict == "wait" {
		d.Wait = d.RetryAfter
	} else if e[6] == nil && !d.Allowed {
		d.RetryAfter = Never
	}
	for notes := or(e[8], []any{}); len(notes) > 0; notes = notes[2:] {
		d.Notes = append(d.Notes, [2]string{notes[0].(string), notes[1].(string)})
	}
	_, extra := or(e[9], []any{}), or(e[10], fields{})
	d.Unit, d.Help, d.Hidden = or(extra["unit"], "requests"), or(extra["help"], ""), or(extra["hide"], false)
}

type connection struct {
	net.Conn
	number, asked    int64
	greeting, out    []byte // greeting goes out with the first request: no round trip more
	in               *bufio.Reader
	welcome, leaving bool
}

// ask writes a request and reads its reply: a decision into its own, of another the ok.
func (k *connection) ask(q *request) (ok bool, caught *fault) {
	defer func() {
		if thrown := recover(); thrown != nil {
			known, is := thrown.(*fault)
			caught = when(is, known, errDoubt)
		}
	}()
	idle, start := k.greeting == nil, len(k.greeting)
	k.out, k.greeting, k.asked = append(k.out[:0], k.greeting...), nil, k.asked+1
	k.out = append(k.out, 0, 0, 0, 0, byte(0x92+q.count), q.op)
	if q.wanted == silent {
		k.out = append(k.out, 0xC0)
	} else {
		k.out = aUint.append(k.out, k.asked)
	}
	k.out = append(k.out, q.body...)
	binary.BigEndian.PutUint32(k.out[start:], uint32(len(k.out)-start-4))
	_ = k.SetDeadline(q.soon())
	written, err := k.Write(k.out)
	for looks, done := 0, q.wanted == silent; err == nil && !done; {
		if ok, done, err = k.read(q); errors.Is(err, os.ErrDeadlineExceeded) && looks < lastLooks {
			next := q.soon()
			if q.ctx.Err() != nil || time.Now().After(q.deadline) { // what is there by now counts
				next, looks = time.Now().Add(lastLook), looks+1
			}
			err = k.SetReadDeadline(next)
		}
	}
	if err == nil {
		return ok, nil
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, errLate
	} // after a goodbye it has answered what it received: this request was not
	return false, &fault{"the daemon hung up", "unreachable", idle && (k.leaving || written == 0), false}
}

// soon is the deadline, or earlier, to look whether the context has ended. To look more often would cost every call.
func (q *request) soon() time.Time {
	next := time.Now().Add(glance)
	return when(q.ctx.Done() != nil && next.Before(q.deadline), next, q.deadline)
}

// read takes one frame. Not done: it was not the reply.
func (k *connection) read(q *request) (ok, done bool, err error) {
	data, err := k.in.Peek(4)
	if err == nil {
		size := binary.BigEndian.Uint32(data)
		if size > frameMax {
			panic(errDoubt)
		}
		data, err = k.in.Peek(4 + int(size))
	}
	if err != nil {
		return false, false, err
	}
	value, rest := decode(data[4:len(data):len(data)], levelsMax)
	e := append(value.([]any), nil)
	_, _ = k.in.Discard(len(data))
	kind, mine := int(e[0].(uint64)), e[1] == any(uint64(k.asked))
	code, _ := e[2].(uint64)
	switch {
	case len(rest) > 0:
		panic(errDoubt)
	case kind == q.wanted && mine && k.welcome && kind == isDecision:
		q.decision.read(e[2:])
		return true, true, nil
	case kind == q.wanted && mine && k.welcome:
		return e[2].(bool), true, nil
	case kind == isWelcome && !k.welcome && e[1] == any(uint64(0)) && code == 1:
		k.welcome = true
	case kind == isGoodbye:
		k.leaving = true
	default:
		keeps := kind == isError && mine && (code >= 5 && code <= 7 || code == 10 || code == 11)
		text := fmt.Sprintf("%.200v", e[2:])
		panic(&fault{fmt.Sprintf("the daemon answered %d: %.300s", kind, text), "protocol", false, keeps})
	}
	return false, false, nil
}

func (c *Client) connect(deadline time.Time) (*connection, error) {
	path := c.path
	if path == "" {
		path = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tidegate/tidegate.sock")
		if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
			path = "/run/tidegate/tidegate.sock"
		}
	}
	dialer := net.Dialer{Deadline: deadline}
	stream, err := dialer.Dial("unix", path)
	if isLate(err) {
		return nil, err
	} else if err != nil {
		return nil, unreachable(path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		c.session = make([]byte, 16)
		_, _ = rand.Read(c.session)
	}
	c.opened++
	info := fields{"client": "go/" + Version, "session": c.session, "pid": int64(os.Getpid()), "pool": c.pool,
		"slots": c.slots, "connection": c.opened}
	hello := encode(nil, []any{int64(opHello), int64(0), int64(1), info})
	k := &connection{Conn: stream, number: c.opened, in: bufio.NewReaderSize(stream, 4+frameMax)}
	k.greeting = append(binary.BigEndian.AppendUint32(nil, uint32(len(hello))), hello...)
	return k, nil
}

// isLate: it was the deadline that ended a dial, not a full backlog, which calls itself a timeout too.
func isLate(err error) bool {
	var timed net.Error
	return errors.As(err, &timed) && timed.Timeout() && !errors.Is(err, syscall.EAGAIN)
}

// unreachable says why, and the mend.
func unreachable(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("the daemon at %s takes no connections: it is stopped or overloaded (%w)", path, err)
	case errors.Is(err, os.ErrPermission):
		who, group := strconv.Itoa(os.Geteuid()), "that of the socket"
		if found, err := user.Current(); err == nil {
			who = found.Username
		}
		if info, err := os.Stat(path); err == nil { // its Gid is there on every system that has one
			gid := fmt.Sprint(reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName("Gid"))
			if found, err := user.LookupGroupId(gid); err == nil {
				group = found.Name
			}
		}
		return fmt.Errorf("permission denied on %s: user %s is not in group %s", path, who, group)
	}
	return fmt.Errorf("no daemon at %s (%w): start it with `tidegate serve`, or set TIDEGATE_SOCKET", path, err)
}

// random is from 0 to 1, and another in every process also where math/rand is not.
func random() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
}
