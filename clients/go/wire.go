// What is written to the daemon and read from it: codec, requests, connections. What to make of it tidegate.go knows.

package tidegate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const ( // the protocol's bounds, operations and kinds of replies; how often to look
	valueMax, valueKept, digested, frameMax, levelsMax        = 1_024, 960, 33, 16_384, 4
	opAcquire, opRelease, opHit                               = 1, 2, 3
	isWelcome, isDecision, isDone, isError, isGoodbye, silent = 0, 1, 2, 3, 4, 5
	glance, lastLook, lastLooks                               = 5 * time.Millisecond, 200 * time.Microsecond, 3
)

// -- codec: MessagePack within the bounds of the protocol -------------------------------------------------------------
// A form is how a number or a size is written: in the first byte, or behind one of several, each for twice the width.
type form struct {
	short byte
	below uint64
	long  byte
	width int
}

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

func appendInt(b []byte, n int64) []byte { return when(n < 0, anInt, aUint).append(b, n) }

func appendText(b []byte, s string) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return append(aText.append(b, int64(len(s))), s...)
}

// fields are names and values that are encoded already.
type fields map[string][]byte

func (f fields) append(b []byte) []byte {
	b = aMap.append(b, int64(len(f)))
	for name, value := range f {
		b = append(appendText(b, name), value...)
	}
	return b
}

// A value was decoded: nil, bool, uint, int, x (bytes), string, array or map by its kind. Bytes are those of the frame.
type value struct {
	kind  byte
	n     uint64
	bytes []byte
	list  []value // of a map: key, value, key, value, …
}

// What first bytes from 0xC0 on begin, and how many bytes of number follow.
const firsts, widths = "n?bbxxx?????uuuuiiii?????sssaamm", "00001240000012481248000001242424"

// decode reads one value and returns what follows. It panics at whatever the protocol forbids.
func (v *value) decode(data []byte, levels int) []byte {
	c, width := data[0], 0
	v.kind, v.n = 'i', uint64(int8(c))
	switch data = data[1:]; {
	case c < 0x80:
		v.kind = 'u'
	case c < 0xA0:
		v.kind, v.n = "ma"[c>>4&1], uint64(c&15)
	case c < 0xC0:
		v.kind, v.n = 's', uint64(c&31)
	case c < 0xE0:
		v.kind, v.n, width = firsts[c-0xC0], 0, int(widths[c-0xC0]-'0')
	}
	for _, b := range data[:width] {
		v.n = v.n<<8 | uint64(b)
	}
	switch data = data[width:]; v.kind {
	case 'n', 'u':
		return data
	case 'b':
		v.n = uint64(c & 1)
		return data
	case 'i': // what was written as signed may be positive
		unused := (64 - 8*width) % 64
		v.n = uint64(int64(v.n<<unused) >> unused)
		v.kind = when(int64(v.n) < 0, byte('i'), 'u')
		return data
	case 'x', 's':
		if v.bytes = data[:v.n]; v.kind == 's' && !utf8.Valid(v.bytes) {
			panic(errDoubt)
		}
		return data[v.n:]
	case 'a', 'm':
		count := len(data[:v.n]) * when(v.kind == 'm', 2, 1) // an element takes a byte at least
		if count > cap(v.list) {
			v.list = make([]value, count)
		}
		v.list = v.list[:count]
		keys := (map[string]bool)(nil)
		for i := 0; i < count && levels > 0; i++ {
			one := &v.list[i]
			if data = one.decode(data, levels-1); v.kind == 'm' && i%2 == 0 {
				if keys == nil {
					keys = map[string]bool{}
				}
				if one.kind != 's' || keys[string(one.bytes)] {
					panic(errDoubt)
				}
				keys[string(one.bytes)] = true
			}
		}
		if levels > 0 {
			return data
		}
	}
	panic(errDoubt)
}

// of is the value itself. It panics if that is of another kind.
func (v *value) of(kind byte) *value {
	if v.kind != kind {
		panic(errDoubt)
	}
	return v
}

var none value // what stands for nil; nobody writes it

// -- request: what is asked, within the bounds of the protocol --------------------------------------------------------
type request struct {
	ctx             context.Context
	began, deadline time.Time
	op              byte
	refuse, ok      bool // ok: what a DONE said
	wanted, count   int  // the kind of its reply, or silent; how many elements stand behind the id, which are
	body            []byte
	decision        *Decision // of a judgement, with all that follows
	domain          string
	cost            []byte
	priority        string
	options         fields
	descriptors     []Attributes
	texts           []string // names and values of all descriptors, which end at ends
	ends            []int
	unsaid          Units
	abandoned       [][2]int64
}

var requests, costOne = sync.Pool{New: func() any { return &request{} }}, []byte{1}

func newRequest(ctx context.Context, op byte, wanted int, domain string, a Attributes) *request {
	q := requests.Get().(*request)
	*q = request{ctx: ctx, op: op, wanted: wanted, domain: domain, cost: costOne, body: q.body,
		descriptors: append(q.descriptors[:0], a), texts: q.texts[:0], ends: q.ends[:0]}
	return q
}

func (q *request) say(name string, encoded []byte) {
	if q.options == nil {
		q.options = fields{}
	}
	q.options[name] = encoded
}

// write writes a judgement, and what the daemon is to be told where that cannot cost an attribute its text.
func (q *request) write(c *Client) {
	for _, attributes := range q.descriptors {
		for _, pair := range attributes {
			if value := text(pair[1]); value != "" {
				q.texts = append(q.texts, text(pair[0]), value)
			}
		}
		q.ends = append(q.ends, len(q.texts))
	}
	q.encode()
	if q.decision == nil || len(q.body) > frameMax/2 || !c.news.Load() {
		return
	}
	c.mu.Lock()
	q.unsaid, q.abandoned, c.unsaid, c.abandoned = c.unsaid, c.abandoned, Units{}, nil
	c.news.Store(false)
	c.mu.Unlock()
	q.report()
	q.encode()
}

// report says in the options what the daemon is to be told.
func (q *request) report() {
	missed, abandoned := fields{}, anArray.append(nil, int64(len(q.abandoned)))
	for reason, n := range q.unsaid {
		missed[reason] = appendInt(nil, n)
	}
	for _, which := range q.abandoned {
		abandoned = appendInt(appendInt(append(abandoned, 0x92), which[0]), which[1])
	}
	q.say("missed", missed.append(nil))
	q.say("abandoned", abandoned)
}

// encode leaves out nils at the end, and shortens the longest values until it fits. What else is out of bounds the
// daemon tells from what is not.
func (q *request) encode() {
	for {
		b, from := anArray.append(appendText(q.body[:0], q.domain), int64(len(q.ends))), 0
		for _, to := range q.ends {
			b = anArray.append(b, int64(to-from))
			for ; from < to; from++ {
				b = appendText(b, q.texts[from])
			}
		}
		b, q.count = append(b, q.cost...), 3
		if q.priority != "" {
			b, q.count = appendText(b, q.priority), 4
		}
		if len(q.options) > 0 {
			b, q.count = q.options.append(append(b, "\xC0"[q.count-3:]...)), 5
		}
		if q.body = b; len(b) <= frameMax-11 { // beside the op and the longest id
			return
		}
		longest, size := -1, digested
		for i := 1; i < len(q.texts); i += 2 {
			if len(q.texts[i]) > size {
				longest, size = i, len(q.texts[i])
			}
		}
		if longest < 0 {
			panic(errLarge)
		}
		q.texts[longest] = shorten(q.texts[longest], 0)
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
func (d *Decision) read(elements []value) {
	at := func(i int, kind byte) *value {
		if i >= len(elements) || elements[i].kind == 'n' {
			return &none
		}
		return elements[i].of(kind)
	}
	number := func(i int) uint64 { return at(i, 'u').n }
	duration := func(i int) time.Duration { // at most what Go has, 292 years
		us := number(i)
		return when(us < math.MaxInt64/1_000, time.Duration(us)*time.Microsecond, math.MaxInt64)
	}
	verdict := elements[0].of('u').n
	d.Verdict = [...]string{"allow", "limit", "shed", "wait", "deny"}[verdict]
	d.Status = [...]int{200, 429, 503, 200, 403}[verdict]
	d.Allowed, d.Rule, d.HasLimit = d.Status == 200, string(at(1, 's').bytes), at(2, 'u') != &none
	d.Limit, d.Remaining, d.Lease = number(2), number(4), number(7)
	d.Window, d.ResetAfter, d.RetryAfter = duration(3), duration(5), duration(6)
	if d.Verdict == "wait" {
		d.Wait = d.RetryAfter
	} else if at(6, 'u') == &none && !d.Allowed {
		d.RetryAfter = Never
	}
	for notes := at(8, 'a').list; len(notes) > 0; notes = notes[2:] {
		d.Notes = append(d.Notes, [2]string{string(notes[0].of('s').bytes), string(notes[1].of('s').bytes)})
	}
	at(9, 'a')
	d.Unit = "requests"
	for extra := at(10, 'm').list; len(extra) > 0; extra = extra[2:] {
		switch name, said := string(extra[0].bytes), &extra[1]; {
		case said.kind == 'n':
		case name == "unit":
			d.Unit = string(said.of('s').bytes)
		case name == "help":
			d.Help = string(said.of('s').bytes)
		case name == "hide":
			d.Hidden = said.of('b').n == 1
		}
	}
}

type connection struct {
	net.Conn
	number, asked    int64
	greeting, out    []byte // greeting goes out with the first request: no round trip more
	in               []byte // from..filled was not looked at yet
	from, filled     int
	reply            value
	armed            time.Time // what its deadline is set to
	welcome, leaving bool
}

// ask writes a request and reads its reply, a decision into its own.
func (k *connection) ask(q *request) (caught *fault) {
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
	// A deadline that is set already, of a request before, and is sooner, will do until it has passed: to set one costs
	// more than to write a request.
	now, unsent, looks, done := q.began, k.out, 0, false
	if limit := q.soon(now); !k.armed.After(now) || k.armed.After(limit) {
		k.arm(limit)
	}
	for err := error(nil); !done; {
		if len(unsent) > 0 {
			n := 0
			n, err = k.Write(unsent)
			unsent = unsent[n:]
			done = len(unsent) == 0 && q.wanted == silent
		} else {
			done, err = k.read(q)
		}
		if err == nil {
			continue
		} else if !errors.Is(err, os.ErrDeadlineExceeded) { // after a goodbye it has answered what it received
			return &fault{"the daemon hung up", "unreachable", idle && (k.leaving || len(unsent) == len(k.out)), false}
		}
		if now = time.Now(); now.Before(q.deadline) && q.ctx.Err() == nil {
			k.arm(q.soon(now))
		} else if looks++; looks > lastLooks || len(unsent) > 0 {
			return errLate
		} else { // what is there by now counts
			k.arm(now.Add(lastLook))
		}
	}
	return nil
}

func (k *connection) arm(at time.Time) {
	k.armed = at
	_ = k.SetDeadline(at) // where it cannot be set nothing can be written, either
}

// soon is the deadline, or earlier, to look whether the context has ended. To look more often would cost every call.
func (q *request) soon(now time.Time) time.Time {
	next := now.Add(glance)
	return when(q.ctx.Done() != nil && next.Before(q.deadline), next, q.deadline)
}

// read takes one frame. Not done: it was not the reply.
func (k *connection) read(q *request) (done bool, err error) {
	k.from, k.filled = 0, copy(k.in, k.in[k.from:k.filled])
	size := 4
	for known := false; k.filled < size || !known; {
		if k.filled < size {
			n, err := k.Read(k.in[k.filled:])
			if k.filled += n; n == 0 {
				return false, err
			}
		} else if size, known = size+int(binary.BigEndian.Uint32(k.in)), true; size > len(k.in) {
			panic(errDoubt)
		}
	}
	k.from = size
	if rest := k.reply.decode(k.in[4:size:size], levelsMax); len(rest) > 0 {
		panic(errDoubt)
	}
	e, code := k.reply.of('a').list, uint64(0)
	kind, mine := int(e[0].of('u').n), e[1].kind == 'u' && e[1].n == uint64(k.asked)
	if len(e) > 2 && e[2].kind == 'u' {
		code = e[2].n
	}
	switch {
	case kind == q.wanted && mine && k.welcome && kind == isDecision:
		q.decision.read(e[2:])
		return true, nil
	case kind == q.wanted && mine && k.welcome:
		q.ok = e[2].of('b').n == 1
		return true, nil
	case kind == isWelcome && !k.welcome && e[1].kind == 'u' && e[1].n == 0 && code == 1:
		k.welcome = true
	case kind == isGoodbye:
		k.leaving = true
	default:
		keeps := kind == isError && mine && (code >= 5 && code <= 7 || code == 10 || code == 11)
		why := ""
		if kind == isError && len(e) > 3 {
			why = string(e[3].bytes)
		}
		panic(&fault{fmt.Sprintf("the daemon answered %d: %d %.200q", kind, code, why), "protocol", false, keeps})
	}
	return false, nil
}
