// The protocol: MessagePack, requests and replies, within the limits of version 1.

package tidegate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const ( // limits, operations and kinds of replies
	valueMax, valueKept, digested, frameMax, levelsMax        = 1_024, 960, 33, 16_384, 4
	idemMax, idemKept, nameMax, descriptorsMax, pairsMax      = 64, 30, 64, 8, 16
	unitsMax                                                  = frameMax / 3 // no frame holds more
	partsMax                                                  = 1 << 16      // of a value, such as elements of a slice
	opAcquire, opRelease, opHit, opCharge, opPing             = 1, 2, 3, 5, 8
	isWelcome, isDecision, isDone, isError, isGoodbye, silent = 0, 1, 2, 3, 4, 5

	nameHelp = `use 1 to 64 bytes without control characters, ":" or "/"`
)

// A form is the encoding of a number or size: below a bound in the first byte, else after a byte for each width.
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

// fields are names and encoded values.
type fields map[string][]byte

func (f fields) append(b []byte) []byte {
	b = aMap.append(b, int64(len(f)))
	for name, value := range f {
		b = append(appendText(b, name), value...)
	}
	return b
}

// A value is decoded; kind: nil, bool, uint, int, x (bytes), string, array or map. Its bytes alias the frame.
type value struct {
	kind  byte
	n     uint64
	bytes []byte
	list  []value // of a map: key, value, key, value, …
}

// The kind of each first byte from 0xC0 on, and the width of the following number.
const firsts, widths = "n?bbxxx?????uuuuiiii?????sssaamm", "00001240000012481248000001242424"

// decode reads one value and returns the following bytes. It panics if the protocol forbids the value.
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
	case 'i': // a number written as signed may be positive
		unused := (64 - 8*width) % 64
		v.n = uint64(int64(v.n<<unused) >> unused)
		v.kind = when(int64(v.n) < 0, byte('i'), 'u')
		return data
	case 'x', 's':
		if v.bytes = data[:v.n]; v.kind == 's' && !utf8.Valid(v.bytes) {
			panic(errMalformed)
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
					panic(errMalformed)
				}
				keys[string(one.bytes)] = true
			}
		}
		if levels > 0 {
			return data
		}
	}
	panic(errMalformed)
}

// expect returns the value, or panics if it has another kind.
func (v *value) expect(kind byte) *value {
	if v.kind != kind {
		panic(errMalformed)
	}
	return v
}

var none value // stands for nil; never written

// A request of any operation. The fields from decision on are of judged requests only.
type request struct {
	ctx                   context.Context
	began, sent, deadline time.Time // sent: start of the daemon's time; zero while it waits for a connection
	op                    byte
	refuse, ok            bool // ok: of a DONE
	wanted, count         int  // kind of the reply, or silent; number of elements in body
	body                  []byte
	bad                   *fault   // instead of a reply
	asked, lease          [2]int64 // connection and id: of this request; of the request whose lease it releases

	turn           chan *connection // of a request that waits for a connection; the pool's lock guards the next two
	leads, expired bool             // it leads an exchange; its caller has stopped waiting
	fresh, busy    bool             // it needs a new connection; the daemon refused one

	decision    *Decision
	domain      string
	amount      int64
	units       Units // instead of amount
	priority    string
	idem        string
	problem     string // of an option
	options     fields
	descriptors []Attributes
	texts       []string // names and values of all descriptors, which end at ends
	ends        []int
	unreported  Units
	abandoned   [][2]int64
}

var requests = sync.Pool{New: func() any { return &request{} }}

func newRequest(ctx context.Context, op byte, wanted int, domain string, a Attributes) *request {
	q := requests.Get().(*request)
	*q = request{ctx: ctx, op: op, wanted: wanted, domain: domain, amount: 1, body: q.body, turn: q.turn,
		descriptors: append(q.descriptors[:0], a), texts: q.texts[:0], ends: q.ends[:0]}
	return q
}

// setDeadline sets the earlier deadline of context and client. Time lost in this process, waiting for a connection or a
// processor, is not the daemon's: it gets at least a quarter of the timeout.
func (q *request) setDeadline(timeout time.Duration) {
	if q.wanted == silent { // time for the write only
		timeout = silentTimeout
	}
	q.deadline = q.began.Add(timeout)
	if least := q.sent.Add(timeout / 4); least.After(q.deadline) {
		q.deadline = least
	}
	if at, has := q.ctx.Deadline(); has && at.Before(q.deadline) {
		q.deadline = at
	}
}

func (q *request) option(name string, encoded []byte) {
	if q.options == nil {
		q.options = fields{}
	}
	q.options[name] = encoded
}

// check converts the attributes to texts and refuses an invalid request before any I/O. The texts of its faults contain
// no values of the request.
func (q *request) check() *fault {
	switch {
	case q.problem != "":
		return invalid(q.problem)
	case !IsName(q.domain):
		return invalid("the domain is not a name; help: " + nameHelp)
	case q.amount < 0 && q.units == nil && q.op != opCharge:
		return invalid("the cost is negative; help: use 0 or more, and Charge to refund")
	case len(q.units) > unitsMax:
		return invalid(fmt.Sprintf("more than %d units; help: send fewer", unitsMax))
	case len(q.descriptors) > descriptorsMax:
		return invalid(fmt.Sprintf("more than %d descriptors; help: send fewer", descriptorsMax))
	}
	for unit, n := range q.units {
		if !IsName(unit) {
			return invalid("a unit of the cost is not a name; help: " + nameHelp)
		} else if n < 0 && q.op != opCharge {
			return invalid("the cost is negative; help: use 0 or more, and Charge to refund")
		}
	}
	for _, attributes := range q.descriptors {
		from := len(q.texts)
		for _, pair := range attributes {
			name, _ := text(pair[0])
			value, has := text(pair[1])
			if has && value == "" {
				continue
			} else if !IsName(name) {
				return invalid("the name of an attribute is invalid; help: " + nameHelp)
			} else if !has {
				return invalid("the attribute " + name + " has no text; help: send its id")
			}
			if q.texts = append(q.texts, name, value); len(q.texts)-from > 2*pairsMax {
				return invalid(fmt.Sprintf("more than %d attributes; help: send fewer", pairsMax))
			}
		}
		q.ends = append(q.ends, len(q.texts))
	}
	if !IsName(q.priority) { // an invalid priority counts as none
		q.priority = ""
	}
	return nil
}

// about names the attributes of a checked request, without their values.
func (q *request) about() string {
	names := []string{}
	for i := 0; i < len(q.texts); i += 2 {
		if name := q.texts[i]; !strings.Contains(", "+strings.Join(names, ", ")+", ", ", "+name+", ") {
			names = append(names, name)
		}
	}
	return when(len(names) > 0, "with the attributes "+strings.Join(names, ", "), "without attributes")
}

// IsName reports whether a text may be the name of a domain, pool, attribute, unit or priority.
func IsName(s string) bool {
	if s == "" || len(s) > nameMax {
		return false
	}
	wide := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c < ' ' || c == ':' || c == '/' || c == 0x7F:
			return false
		case c >= utf8.RuneSelf:
			wide = true
		}
	}
	return !wide || utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// write encodes a request or a charge, with reports to the daemon if the request is short: no value becomes a digest.
func (q *request) write(c *Client) *fault {
	if !q.encode() {
		return invalid("the request does not fit into a frame; help: send less")
	} else if q.decision == nil || len(q.body) > frameMax/2 || !c.news.Load() {
		return nil
	}
	c.mu.Lock()
	q.unreported, q.abandoned, c.unreported, c.abandoned = c.unreported, c.abandoned, Units{}, nil
	c.news.Store(false)
	c.mu.Unlock()
	q.report()
	q.encode()
	return nil
}

// report adds decisions without the daemon and abandoned requests to the options.
func (q *request) report() {
	missed, abandoned := fields{}, anArray.append(nil, int64(len(q.abandoned)))
	for reason, n := range q.unreported {
		missed[reason] = appendInt(nil, n)
	}
	for _, which := range q.abandoned {
		abandoned = appendInt(appendInt(append(abandoned, 0x92), which[0]), which[1])
	}
	q.option("missed", missed.append(nil))
	q.option("abandoned", abandoned)
}

// encode omits trailing nils, and replaces the longest values by digests until the request fits; false: it does not.
func (q *request) encode() bool {
	for {
		b, from := anArray.append(appendText(q.body[:0], q.domain), int64(len(q.ends))), 0
		for _, to := range q.ends {
			b = anArray.append(b, int64(to-from))
			for ; from < to; from++ {
				b = appendText(b, q.texts[from])
			}
		}
		b, q.count = q.appendCost(b), 3
		if q.priority != "" {
			b, q.count = appendText(b, q.priority), 4
		}
		if len(q.options) > 0 {
			if q.count == 3 && q.op != opCharge { // which has no priority
				b = append(b, 0xC0)
			}
			b, q.count = q.options.append(b), when(q.op == opCharge, 4, 5)
		}
		if q.body = b; len(b) <= frameMax-11 { // array, op and the longest id
			return true
		}
		longest, size := -1, digested
		for i := 1; i < len(q.texts); i += 2 {
			if len(q.texts[i]) > size {
				longest, size = i, len(q.texts[i])
			}
		}
		if longest < 0 {
			return false
		}
		q.texts[longest] = digest(q.texts[longest], 0)
	}
}

func (q *request) appendCost(b []byte) []byte {
	if q.units == nil {
		return appendInt(b, q.amount)
	}
	b = aMap.append(b, int64(len(q.units)))
	for unit, n := range q.units {
		b = appendInt(appendText(b, unit), n)
	}
	return b
}

// appendFrame appends the request's frame with its id.
func (q *request) appendFrame(b []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, byte(0x92+q.count), q.op)
	if q.wanted == silent {
		b = append(b, 0xC0)
	} else {
		b = aUint.append(b, q.asked[1])
	}
	b = append(b, q.body...)
	size := len(b) - start - 4
	b[start+2], b[start+3] = byte(size>>8), byte(size)
	return b
}

// text converts an attribute to the text that is sent; false: it has none of its own.
func text(value any) (s string, has bool) {
	switch v := value.(type) {
	case nil:
	case string:
		s = v
	case []byte:
		s = string(v)
	default:
		pointer := reflect.ValueOf(value)
		if pointer.Kind() == reflect.Pointer && pointer.IsNil() {
			return "", true
		}
		switch v := value.(type) { // fmt would turn a panic of these into a text
		case error:
			s = v.Error()
		case fmt.Stringer:
			s = v.String()
		default:
			left, of := partsMax, reflect.Indirect(pointer) // a pointer's text is that of its value
			if hasAddress(of, &left) {
				return "", false
			}
			s = fmt.Sprint(of)
		}
	}
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) > valueMax {
		return digest(s, valueKept), true
	}
	return s, true
}

// hasAddress returns true if the text of a value has an address, as of a function or of a pointer in a struct: each
// object would be another caller. Also for more than left parts, since a value that contains itself has no end.
func hasAddress(v reflect.Value, left *int) (has bool) {
	if *left--; *left < 0 {
		return true
	} else if !v.IsValid() || v.CanInterface() && (v.Type().Implements(stringer) || v.Type().Implements(failure)) {
		return false
	}
	switch v.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Pointer:
		return true
	case reflect.Interface:
		return hasAddress(v.Elem(), left)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && !has; i++ {
			has = hasAddress(v.Index(i), left)
		}
	case reflect.Map:
		for pairs := v.MapRange(); !has && pairs.Next(); {
			has = hasAddress(pairs.Key(), left) || hasAddress(pairs.Value(), left)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && !has; i++ {
			has = hasAddress(v.Field(i), left)
		}
	}
	return has
}

var stringer, failure = reflect.TypeOf((*fmt.Stringer)(nil)).Elem(), reflect.TypeOf((*error)(nil)).Elem()

// digest returns at most kept bytes of s, and the digest of all of s.
func digest(s string, kept int) string {
	for whole := utf8.ValidString(s); whole && kept > 0 && !utf8.RuneStart(s[kept]); kept-- {
	}
	sum := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%s~%x", s[:kept], sum[:16])
}

// read fills the decision from the elements after the id. It panics if the protocol forbids them.
func (d *Decision) read(elements []value) {
	at := func(i int, kind byte) *value {
		if i >= len(elements) || elements[i].kind == 'n' {
			return &none
		}
		return elements[i].expect(kind)
	}
	number := func(i int) uint64 { return at(i, 'u').n }
	duration := func(i int) time.Duration { // at most Go's maximum, 292 years
		us := number(i)
		return when(us < math.MaxInt64/1_000, time.Duration(us)*time.Microsecond, math.MaxInt64)
	}
	verdict := elements[0].expect('u').n
	d.Verdict = [...]Verdict{VerdictAllow, VerdictLimit, VerdictShed, VerdictWait, VerdictDeny}[verdict]
	d.Status = [...]int{200, 429, 503, 200, 403}[verdict]
	d.Allowed, d.Rule, d.HasLimit = d.Status == 200, string(at(1, 's').bytes), at(2, 'u') != &none
	d.Limit, d.Remaining, d.Lease = number(2), number(4), number(7)
	d.Window, d.ResetAfter, d.RetryAfter = duration(3), duration(5), duration(6)
	if d.Verdict == VerdictWait {
		d.Wait = d.RetryAfter
	} else if at(6, 'u') == &none && !d.Allowed {
		d.RetryAfter = Never
	}
	for notes := at(8, 'a').list; len(notes) > 0; notes = notes[2:] {
		d.Notes = append(d.Notes, [2]string{string(notes[0].expect('s').bytes), string(notes[1].expect('s').bytes)})
	}
	at(9, 'a')
	d.Unit = "requests"
	for extra := at(10, 'm').list; len(extra) > 0; extra = extra[2:] {
		switch name, field := string(extra[0].bytes), &extra[1]; {
		case field.kind == 'n':
		case name == "unit":
			d.Unit = string(field.expect('s').bytes)
		case name == "help":
			d.Help = string(field.expect('s').bytes)
		case name == "hide":
			d.Hidden = field.expect('b').n == 1
		case name == "rate":
			d.Rate = string(field.expect('s').bytes)
		case name == "digest":
			d.Digest = string(field.expect('s').bytes)
		case name == "blocked":
			d.Blocked = field.expect('b').n == 1
		}
	}
}

// err returns the error for the application.
func (f *fault) err() error {
	switch {
	case f.ended != nil:
		return f.ended
	case f.reason == "invalid":
		return fmt.Errorf("%w: %s", ErrInvalid, f.text)
	}
	return errors.New(f.text)
}
