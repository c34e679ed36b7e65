// What the Go client costs: one Hit and one Acquire beside the same bytes written and read without it. The last line is
// with the context of a request, which may be cancelled at any time.
//
//	cd benches/go_client && go run . [-daemon ../../target/release/tidegate] [-repetitions 7]
//
// Starts the daemon on a socket of its own. Client and daemon share one CPU, so that every call is two switches. In one
// repetition short rounds of all take turns; its figure is the median round, and the ratio compares figures of the same
// repetition. Nothing here is a test: it prints, it does not judge.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"syscall"
	"time"
	"unsafe"

	"github.com/tidegate/tidegate/clients/go"
)

const (
	rules                 = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n"
	rounds, callsPerRound = 200, 50
)

func main() {
	daemon := flag.String("daemon", "../../target/release/tidegate", "the daemon's binary")
	repetitions := flag.Int("repetitions", 7, "of everything")
	flag.Parse()
	cpu := alone()
	folder, err := os.MkdirTemp("", "tg-")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "s")
	check(os.Mkdir(filepath.Join(folder, "rules"), 0o755))
	check(os.WriteFile(filepath.Join(folder, "rules", "api.yaml"), []byte(rules), 0o644))
	process := exec.Command(*daemon, "serve", "--socket", path, "--rules", filepath.Join(folder, "rules"))
	check(process.Start())
	defer func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	}()
	for until := time.Now().Add(10 * time.Second); !tidegate.New(tidegate.WithSocket(path), tidegate.WithLogger(silent{})).Check(); {
		if time.Now().After(until) {
			log.Print("the daemon does not answer")
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	client := tidegate.New(tidegate.WithSocket(path))
	fmt.Printf("%s, CPU %d, %d repetitions; median [min-max]\n", runtime.Version(), cpu, *repetitions)
	compare(client, path, *repetitions)
	if missed := client.Stats().Missed; len(missed) > 0 {
		fmt.Println("missed:", missed)
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// alone runs this program again on the last CPU that it may use, which the daemon inherits.
func alone() int {
	var set [16]uint64
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	if errno != 0 {
		log.Fatal(errno)
	}
	last, count := 0, 0
	for cpu := 0; cpu < 64*len(set); cpu++ {
		if set[cpu/64]>>(cpu%64)&1 == 1 {
			last = cpu
			count++
		}
	}
	if count == 1 {
		return last
	}
	runtime.LockOSThread()
	set = [16]uint64{}
	set[last/64] = 1 << (last % 64)
	_, _, errno = syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	if errno != 0 {
		log.Fatal(errno)
	}
	self, err := os.Executable()
	check(err)
	check(syscall.Exec(self, os.Args, os.Environ()))
	return last
}

func compare(client *tidegate.Client, path string, repetitions int) {
	var held []*tidegate.Decision
	ctx, user := context.Background(), tidegate.Attributes{{"user", "u1"}}
	request, cancel := context.WithCancel(ctx) // as that of a request is
	defer cancel()
	names := []string{"bytes", "hit", "bytes of acquire", "acquire", "acquire, may be cancelled"}
	calls := map[string]func(){
		"bytes":                     bare(path, 3),
		"hit":                       func() { client.Hit(ctx, "api", user) },
		"acquire":                   func() { held = append(held, client.Acquire(ctx, "api", user)) },
		"acquire, may be cancelled": func() { held = append(held, client.Acquire(request, "api", user)) },
	}
	round := func(name string) float64 {
		// Each round has a connection of its own: of two that are kept one may be slower for as long as it lives, and the
		// leases of a bare one end with it.
		client.Close()
		switch name {
		case "bytes":
			calls[name] = bare(path, 3)
		case "bytes of acquire":
			calls[name] = bare(path, 1)
		}
		call := calls[name]
		for i := 0; i < callsPerRound/5; i++ { // whatever the round before has left to do is done
			call()
		}
		began := time.Now()
		for i := 0; i < callsPerRound; i++ {
			call()
		}
		took := time.Since(began)
		for _, d := range held {
			d.Release()
		}
		if len(held) > 0 {
			client.Check() // once all of that is done
		}
		held = held[:0]
		return float64(took.Nanoseconds()) / callsPerRound / 1e3
	}
	figures := map[string][]float64{}
	for repetition := -1; repetition < repetitions; repetition++ { // the first one is for warming up
		all := map[string][]float64{}
		for i := 0; i < rounds; i++ {
			for _, name := range names {
				all[name] = append(all[name], round(name))
			}
		}
		for _, name := range names {
			if repetition >= 0 {
				figures[name] = append(figures[name], median(all[name]))
			}
		}
	}
	for _, name := range names {
		show(name, figures[name], "µs")
		if bytes := map[string]string{"hit": "bytes", "acquire": "bytes of acquire",
			"acquire, may be cancelled": "bytes of acquire"}[name]; bytes != "" {
			var ratios []float64
			for i, one := range figures[name] {
				ratios = append(ratios, one/figures[bytes][i])
			}
			show(name+" ÷ "+bytes, ratios, "")
		}
	}
}

// bare is a request encoded beforehand, its reply read and not looked at. Blocking, without a deadline.
func bare(path string, op byte) func() {
	if last != nil {
		_ = last.Close()
	}
	stream, err := net.Dial("unix", path)
	check(err)
	last = stream
	room := make([]byte, 4096)
	_, err = stream.Write(frame("\x94\x00\x00\x01\x80"))
	check(err)
	_, err = stream.Read(room)
	check(err)
	request := frame("\x95" + string(rune(op)) + "\xcd\x10\x00\xa3api\x91\x92\xa4user\xa2u1\x01")
	return func() {
		_, _ = stream.Write(request)
		_, _ = stream.Read(room)
	}
}

var last net.Conn

func frame(payload string) []byte {
	return append([]byte{0, 0, byte(len(payload) >> 8), byte(len(payload))}, payload...)
}

func median(all []float64) float64 {
	sorted := append([]float64(nil), all...)
	sort.Float64s(sorted)
	return sorted[len(sorted)/2]
}

func show(name string, figures []float64, unit string) {
	sort.Float64s(figures)
	fmt.Printf("%-44s %6.2f [%.2f-%.2f] %s\n", name, median(figures), figures[0], figures[len(figures)-1], unit)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
