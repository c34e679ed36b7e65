// Package peer plays the daemon's side of the protocol in tests: a codec that shares nothing with the client's, and a
// listener that follows a script.
package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Bin is encoded as a byte string.
type Bin []byte

// Map is a map in a given order.
type Map [][2]any

// Encode returns the shortest MessagePack of nil, bool, int, int64, uint64, string, Bin, []any, Map.
func Encode(value any) []byte {
	switch v := value.(type) {
	case nil:
		return []byte{0xC0}
	case bool:
		if v {
			return []byte{0xC3}
		}
		return []byte{0xC2}
	case int:
		return Encode(int64(v))
	case int64:
		if v >= 0 {
			return Encode(uint64(v))
		}
		switch {
		case v >= -32:
			return []byte{byte(v)}
		case v >= math.MinInt8:
			return []byte{0xD0, byte(v)}
		case v >= math.MinInt16:
			return binary.BigEndian.AppendUint16([]byte{0xD1}, uint16(v))
		case v >= math.MinInt32:
			return binary.BigEndian.AppendUint32([]byte{0xD2}, uint32(v))
		}
		return binary.BigEndian.AppendUint64([]byte{0xD3}, uint64(v))
	case uint64:
		switch {
		case v < 128:
			return []byte{byte(v)}
		case v <= math.MaxUint8:
			return []byte{0xCC, byte(v)}
		case v <= math.MaxUint16:
			return binary.BigEndian.AppendUint16([]byte{0xCD}, uint16(v))
		case v <= math.MaxUint32:
			return binary.BigEndian.AppendUint32([]byte{0xCE}, uint32(v))
		}
		return binary.BigEndian.AppendUint64([]byte{0xCF}, v)
	case string:
		if len(v) < 32 {
			return append([]byte{0xA0 | byte(len(v))}, v...)
		}
		return append(sized(len(v), 0xD9, 0xDA, 0xDB), v...)
	case Bin:
		return append(sized(len(v), 0xC4, 0xC5, 0xC6), v...)
	case []any:
		b := sized(len(v), 0, 0xDC, 0xDD)
		if len(v) < 16 {
			b = []byte{0x90 | byte(len(v))}
		}
		for _, one := range v {
			b = append(b, Encode(one)...)
		}
		return b
	case Map:
		b := sized(len(v), 0, 0xDE, 0xDF)
		if len(v) < 16 {
			b = []byte{0x80 | byte(len(v))}
		}
		for _, pair := range v {
			b = append(append(b, Encode(pair[0])...), Encode(pair[1])...)
		}
		return b
	}
	panic(fmt.Sprintf("a frame cannot hold a %T", value))
}

func sized(n int, one, two, four byte) []byte {
	switch {
	case n <= math.MaxUint8 && one != 0:
		return []byte{one, byte(n)}
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16([]byte{two}, uint16(n))
	}
	return binary.BigEndian.AppendUint32([]byte{four}, uint32(n))
}

// Decode reads one array: nil, bool, int64 (below zero), uint64, string, Bin, []any, map[string]any.
func Decode(payload []byte) (message []any, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not one array")
		}
	}()
	d := &decoder{payload}
	message = d.value().([]any)
	if len(d.data) > 0 {
		return nil, errors.New("trailing bytes")
	}
	return message, nil
}

type decoder struct{ data []byte }

func (d *decoder) take(n int) []byte {
	taken := d.data[:n:n]
	d.data = d.data[n:]
	return taken
}

func (d *decoder) uint(width int) uint64 {
	var wide [8]byte
	copy(wide[8-width:], d.take(width))
	return binary.BigEndian.Uint64(wide[:])
}

func (d *decoder) value() any {
	c := d.take(1)[0]
	switch {
	case c < 0x80:
		return uint64(c)
	case c < 0x90:
		return d.fields(int(c & 15))
	case c < 0xA0:
		return d.list(int(c & 15))
	case c < 0xC0:
		return d.text(int(c & 31))
	case c >= 0xE0:
		return int64(int8(c))
	}
	switch c {
	case 0xC0:
		return nil
	case 0xC2, 0xC3:
		return c == 0xC3
	case 0xC4, 0xC5, 0xC6:
		return Bin(d.take(int(d.uint(1 << (c - 0xC4)))))
	case 0xCC, 0xCD, 0xCE, 0xCF:
		return d.uint(1 << (c - 0xCC))
	case 0xD0, 0xD1, 0xD2, 0xD3:
		bits := 8 << (c - 0xD0)
		if n := int64(d.uint(bits/8)<<(64-bits)) >> (64 - bits); n < 0 {
			return n
		} else {
			return uint64(n)
		}
	case 0xD9, 0xDA, 0xDB:
		return d.text(int(d.uint(1 << (c - 0xD9))))
	case 0xDC, 0xDD:
		return d.list(int(d.uint(2 << (c - 0xDC))))
	case 0xDE, 0xDF:
		return d.fields(int(d.uint(2 << (c - 0xDE))))
	}
	panic("unknown")
}

func (d *decoder) text(n int) string {
	s := string(d.take(n))
	if !utf8.ValidString(s) {
		panic("not UTF-8")
	}
	return s
}

func (d *decoder) list(n int) []any {
	list := []any{}
	for ; n > 0; n-- {
		list = append(list, d.value())
	}
	return list
}

func (d *decoder) fields(n int) map[string]any {
	found := map[string]any{}
	for ; n > 0; n-- {
		key := d.value().(string)
		found[key] = d.value()
	}
	return found
}
