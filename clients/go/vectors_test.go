package tidegate

// The golden frames, the reference of the protocol.

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"testing"

	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

type vector struct {
	Name, Direction, Hex, Code string
	Canonical                  bool
	Meaning                    any
}

func (v vector) payload(t *testing.T) []byte {
	t.Helper()
	data, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return data[4:]
}

func unhex(t *testing.T, s any) []byte {
	t.Helper()
	data, err := hex.DecodeString(s.(string))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadsEveryGoodFrame(t *testing.T) {
	t.Parallel()
	var good []vector
	vectors(t, "good.json", &good)
	for _, v := range good {
		payload := v.payload(t)
		want, err := peer.Decode(payload) // a codec of its own
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		var got value
		rest := got.decode(payload[:len(payload):len(payload)], levelsMax)
		if len(rest) > 0 || fmt.Sprint(plain(got)) != fmt.Sprint(plain(want)) {
			t.Errorf("%s: got %v and %d bytes, want %v", v.Name, got, len(rest), want)
		}
	}
}

// plain converts the types of both codecs.
func plain(decoded any) any {
	switch v := decoded.(type) {
	case value:
		switch v.kind {
		case 'n':
			return nil
		case 'b':
			return v.n == 1
		case 'u':
			return v.n
		case 'i':
			return int64(v.n)
		case 's':
			return string(v.bytes)
		case 'x':
			return plain(peer.Bin(v.bytes))
		case 'a':
			all := make([]any, len(v.list))
			for i := range all {
				all[i] = plain(v.list[i])
			}
			return all
		}
		all := map[string]any{}
		for i := 0; i < len(v.list); i += 2 {
			all[string(v.list[i].bytes)] = plain(v.list[i+1])
		}
		return all
	case peer.Bin:
		return "bin " + hex.EncodeToString(v)
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = plain(v[i])
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for name := range v {
			all[name] = plain(v[name])
		}
		return all
	}
	return decoded
}

func TestReadsEveryDecision(t *testing.T) {
	t.Parallel()
	var good []vector
	vectors(t, "good.json", &good)
	seen := 0
	for _, v := range good {
		meaning := v.Meaning.(map[string]any)
		if meaning["kind"] != "decision" {
			continue
		}
		seen++
		var message value
		message.decode(v.payload(t), levelsMax)
		var d Decision
		d.read(message.list[2:])
		number := func(name string) uint64 {
			n, _ := strconv.ParseUint(fmt.Sprint(meaning[name]), 10, 64)
			return n
		}
		if string(d.Verdict) != meaning["verdict"] || d.Limit != number("limit") || d.Remaining != number("remaining") ||
			d.Lease != number("lease") || d.HasLimit != (meaning["limit"] != nil) {
			t.Errorf("%s: %+v", v.Name, &d)
		}
		if rule, _ := meaning["rule"].(string); d.Rule != rule {
			t.Errorf("%s: the rule %s", v.Name, d.Rule)
		}
		if us := number("window_us"); us < 1<<50 && uint64(d.Window.Microseconds()) != us {
			t.Errorf("%s: the window %v", v.Name, d.Window)
		}
		if us := number("retry_us"); us < 1<<50 && meaning["retry_us"] != nil && uint64(d.RetryAfter.Microseconds()) != us {
			t.Errorf("%s: to try again after %v", v.Name, d.RetryAfter)
		}
		if d.Window < 0 || d.ResetAfter < 0 {
			t.Errorf("%s: a time below 0", v.Name)
		}
		if notes, _ := meaning["notes"].([]any); len(notes) != len(d.Notes) {
			t.Errorf("%s: notes %v", v.Name, d.Notes)
		}
		if extra, _ := meaning["extra"].(map[string]any); extra != nil && extra["help"] != nil && d.Help != extra["help"] {
			t.Errorf("%s: help %q", v.Name, d.Help)
		}
	}
	if seen < 20 {
		t.Fatalf("%d decisions", seen)
	}
}

// The client encodes every canonical request from its meaning.
func TestWritesEveryRequest(t *testing.T) {
	t.Parallel()
	var good []vector
	vectors(t, "good.json", &good)
	written := 0
	for _, v := range good {
		meaning := v.Meaning.(map[string]any)
		op := ops[fmt.Sprint(meaning["op"])]
		if !v.Canonical || v.Direction != "request" || meaning["op"] == "hello" || v.Name == "hit_frame_largest" {
			// That frame has a short id; the client reserves room for the longest, and so shortens it.
			continue
		}
		domain, _ := meaning["domain"].(string)
		q := newRequest(ctx, op, isDecision, domain, nil)
		q.options = fields{}
		q.descriptors = nil
		for _, descriptor := range listed(meaning["descriptors"]) {
			pairs := Attributes{}
			for i := 0; i < len(listed(descriptor)); i += 2 {
				pairs = append(pairs, [2]any{listed(descriptor)[i], listed(descriptor)[i+1]})
			}
			q.descriptors = append(q.descriptors, pairs)
		}
		switch op {
		case opRelease:
			q.count, q.body = 2, appendInt(appendInt(nil, integer(meaning["lease"])),
				map[string]int64{"ok": 0, "error": 1, "dropped": 2}[meaning["outcome"].(string)])
		case opRenew:
			q.count, q.body = 1, appendInt(nil, integer(meaning["lease"]))
		case opSignal:
			q.count, q.body = 3, appendText(appendText(nil, meaning["pool"].(string)), meaning["name"].(string))
			q.body = appendInt(q.body, integer(meaning["permille"]))
		case opPing:
			q.body = nil
		default:
			if !setOptions(t, q, meaning) {
				continue
			}
			if bad := q.check(); bad != nil {
				t.Errorf("%s: %s", v.Name, bad.text)
			}
			q.write(client(t, "/nowhere/s"))
		}
		frame := []byte{byte(0x92 + q.count), op, 0xC0}
		if meaning["id"] != nil {
			frame = aUint.append(frame[:2], integer(meaning["id"]))
		}
		written++
		got, want := append(frame, q.body...), v.payload(t)
		if hex.EncodeToString(got) != hex.EncodeToString(want) {
			one, err := peer.Decode(got) // a map may be in another order
			two, _ := peer.Decode(want)
			if err != nil || len(got) != len(want) || !reflect.DeepEqual(plain(one), plain(two)) {
				t.Errorf("%s: wrote %.300x, want %.300x", v.Name, got, want)
			}
		}
	}
	if written < 50 {
		t.Fatalf("only %d were written", written)
	}
}

var ops = map[string]byte{"hello": 0, "acquire": 1, "release": 2, "hit": 3, "peek": 4, "charge": 5, "renew": 6, "signal": 7, "ping": 8}

func listed(v any) []any {
	all, _ := v.([]any)
	return all
}

func integer(v any) int64 {
	n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// setOptions sets the request's options from the meaning; false: this client never sends it.
func setOptions(t *testing.T, q *request, meaning map[string]any) bool {
	for _, descriptor := range q.descriptors {
		for _, pair := range descriptor {
			if pair[1] == "" {
				return false
			}
		}
	}
	for _, name := range []string{"cost", "amount"} {
		switch cost := meaning[name].(type) {
		case json.Number:
			if _, err := cost.Int64(); err != nil {
				return false // beyond the range of Cost
			}
			Cost(integer(cost))(q)
		case map[string]any:
			units := Units{}
			for unit, n := range cost {
				units[unit] = integer(n)
			}
			Costs(units)(q)
		}
	}
	if priority, is := meaning["priority"].(string); is {
		q.priority = priority
	}
	options, _ := meaning["options"].(map[string]any)
	for name, value := range options {
		switch name {
		case "idem":
			if text, is := value.(string); is {
				q.option(name, appendText(nil, text)) // the client writes bytes, which mean the same; here are the canonical ones
			} else {
				Idem(string(unhex(t, value.(map[string]any)["bin"])))(q)
			}
		case "of":
			switch of := value.(type) {
			case string:
				q.option(name, appendText(nil, of))
			case json.Number:
				Of(uint64(integer(of)))(q)
			default:
				Of(string(unhex(t, of.(map[string]any)["bin"])))(q)
			}
		case "missed":
			q.unreported = Units{}
			for reason, n := range value.(map[string]any) {
				q.unreported[reason] = integer(n)
			}
		case "abandoned":
			q.abandoned = [][2]int64{}
			for _, which := range listed(value) {
				q.abandoned = append(q.abandoned, [2]int64{integer(listed(which)[0]), integer(listed(which)[1])})
			}
		case "queued_us", "max_wait_us":
			n, err := strconv.ParseInt(fmt.Sprint(value), 10, 64)
			if err != nil {
				return false // beyond the range of Go's durations
			}
			q.option(name, appendInt(nil, n))
		default:
			return false
		}
	}
	if encoded := q.options; q.unreported != nil || q.abandoned != nil {
		q.report() // always both; a vector may have one of them
		for _, name := range []string{"missed", "abandoned"} {
			if _, is := options[name]; !is {
				delete(encoded, name)
			}
		}
	}
	return true
}

func TestRefusesMalformedFrames(t *testing.T) {
	t.Parallel()
	var bad []vector
	vectors(t, "bad.json", &bad)
	refused := 0
	for _, v := range bad {
		data := unhex(t, v.Hex)
		if v.Code != "malformed" || len(data) < 5 {
			continue
		}
		size := int(binary.BigEndian.Uint32(data))
		payload := data[4 : 4+size : 4+size]
		func() {
			defer func() {
				if recover() != nil {
					refused++
				}
			}()
			var decoded value
			rest := decoded.decode(payload, levelsMax)
			message := plain(decoded).([]any)
			if len(rest) > 0 {
				panic("trailing")
			}
			// Only a reader of requests detects the rest: op or id is no unsigned integer, or too large.
			message = append(message, nil, nil)
			op, isOp := message[0].(uint64)
			id, isID := message[1].(uint64)
			if isOp && isID && op < 1<<63 && id < 1<<63 {
				t.Errorf("%s was read: %v", v.Name, message)
			}
		}()
	}
	if refused < 30 {
		t.Fatalf("only %d were refused", refused)
	}
}
