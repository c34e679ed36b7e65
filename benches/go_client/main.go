// The cost of the Go client: Hit and Acquire, also with a cancellable context, compared with the same bytes written and
// read without it, and with a GCRA script in Redis over its socket.
//
//	cd benches/go_client && go run . [-daemon ../../target/release/tidegate] [-repetitions 7]
//	cd benches/go_client && go run . -callers 2000 [-think 50ms]      counts unanswered calls of 2000 goroutines
//	cd benches/go_client && go run . -pause 30ms                      counts unanswered calls when the daemon stops
//
// Starts the daemon, and Redis if installed, on temporary sockets. Client and servers share one CPU, so that every call
// is two switches. A repetition alternates short rounds of all; its figure is the median round, and a ratio compares
// figures of one repetition. It only prints: it is not a test.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
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
	callers := flag.Int("callers", 0, "ask at once, on all CPUs, instead")
	think := flag.Duration("think", 50*time.Millisecond, "between two calls of such a caller")
	pause := flag.Duration("pause", 0, "of the daemon, instead")
	flag.Parse()
	cpu := 0
	if *callers == 0 && *pause == 0 {
		cpu = alone()
	}
	folder, err := os.MkdirTemp("", "tg-")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "s")
	check(os.Mkdir(filepath.Join(folder, "rules"), 0o755))
	check(os.WriteFile(filepath.Join(folder, "rules", "api.yaml"), []byte(rules), 0o644))
	process, stop := start(*daemon, "serve", "--socket", path, "--rules", filepath.Join(folder, "rules"))
	defer stop()
	at := ""
	if server, err := exec.LookPath("redis-server"); err == nil {
		at = filepath.Join(folder, "redis")
		_, end := start(server, "--port", "0", "--save", "", "--unixsocket", at, "--dir", folder)
		defer end()
	}
	for until := time.Now().Add(10 * time.Second); !tidegate.New(tidegate.WithSocket(path), tidegate.WithLogger(silent{})).Check(); {
		if time.Now().After(until) {
			log.Print("the daemon does not answer")
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	client := tidegate.New(tidegate.WithSocket(path))
	if *callers > 0 {
		crowd(client, *callers, *think)
	}
	if *pause > 0 {
		paused(client, process, *pause)
	}
	if *callers > 0 || *pause > 0 {
		return
	}
	fmt.Printf("%s, CPU %d, %d repetitions; median [min-max]\n", runtime.Version(), cpu, *repetitions)
	compare(client, path, at, *repetitions)
	if missed := client.Stats().Missed; len(missed) > 0 {
		fmt.Println("missed:", missed)
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// alone restarts this program on the last CPU available to it, which the daemon inherits.
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

// start starts a server, and returns it and the function that ends it.
func start(command ...string) (server *os.Process, end func()) {
	process := exec.Command(command[0], command[1:]...)
	check(process.Start())
	return process.Process, func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	}
}

func compare(client *tidegate.Client, path, at string, repetitions int) {
	var held []*tidegate.Decision
	ctx, user := context.Background(), tidegate.Attributes{{"user", "u1"}}
	request, cancel := context.WithCancel(ctx) // like the context of an HTTP request
	defer cancel()
	names := []string{"bytes", "hit", "bytes of acquire", "acquire", "acquire, may be cancelled"}
	calls := map[string]func(){
		"bytes":                     bare(path, 3),
		"hit":                       func() { client.Hit(ctx, "api", user) },
		"acquire":                   func() { held = append(held, client.Acquire(ctx, "api", user)) },
		"acquire, may be cancelled": func() { held = append(held, client.Acquire(request, "api", user)) },
	}
	if at != "" {
		names, calls["GCRA in Redis"] = append(names, "GCRA in Redis"), redis(at)
	}
	cpu := map[string]float64{} // of this process; independent of other load
	round := func(name string) float64 {
		// Each round uses a new connection: one of two permanent ones may be slower throughout, and the leases of a bare
		// one end with it.
		client.Close()
		switch name {
		case "bytes":
			calls[name] = bare(path, 3)
		case "bytes of acquire":
			calls[name] = bare(path, 1)
		}
		call := calls[name]
		for i := 0; i < callsPerRound/5; i++ { // absorbs work left by the previous round
			call()
		}
		began, busy := time.Now(), used()
		for i := 0; i < callsPerRound; i++ {
			call()
		}
		took := time.Since(began)
		cpu[name] += float64((used() - busy).Nanoseconds()) / callsPerRound / rounds / 1e3
		for _, d := range held {
			d.Release()
		}
		if len(held) > 0 {
			client.Check() // waits until the daemon has read the releases
		}
		held = held[:0]
		return float64(took.Nanoseconds()) / callsPerRound / 1e3
	}
	figures, cpus := map[string][]float64{}, map[string][]float64{}
	turns, order := append([]string(nil), names...), rand.New(rand.NewSource(7))
	for repetition := -1; repetition < repetitions; repetition++ { // -1 warms up
		all := map[string][]float64{}
		for i := 0; i < rounds; i++ {
			// Random order: a round after Redis finds the daemon's memory cold.
			order.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
			for _, name := range turns {
				all[name] = append(all[name], round(name))
			}
		}
		for _, name := range names {
			if repetition >= 0 {
				figures[name] = append(figures[name], median(all[name]))
				cpus[name] = append(cpus[name], cpu[name])
			}
			cpu[name] = 0
		}
	}
	for _, name := range names {
		if name == "GCRA in Redis" {
			showRatio("acquire", name, figures)
		}
		show(name, figures[name], "µs")
		if bytes := map[string]string{"hit": "bytes", "acquire": "bytes of acquire",
			"acquire, may be cancelled": "bytes of acquire"}[name]; bytes != "" {
			showRatio(name, bytes, figures)
			show("  CPU of this process", cpus[name], "µs")
			show("  CPU of this process ÷ "+bytes, ratios(name, bytes, cpus), "")
		}
	}
}

func showRatio(name, other string, figures map[string][]float64) {
	show(name+" ÷ "+other, ratios(name, other, figures), "")
}

func ratios(name, other string, figures map[string][]float64) (all []float64) {
	for i, one := range figures[name] {
		all = append(all, one/figures[other][i])
	}
	return all
}

// used is the CPU time of this process so far.
func used() time.Duration {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// redis calls a preloaded script, blocking, without a deadline.
func redis(at string) func() {
	stream, err := net.Dial("unix", at)
	for until := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(until); stream, err = net.Dial("unix", at) {
		time.Sleep(20 * time.Millisecond)
	}
	check(err)
	script, err := os.ReadFile("../sockets/gcra.lua")
	check(err)
	room := make([]byte, 4096)
	_, err = stream.Write(resp("SCRIPT", "LOAD", string(script)))
	check(err)
	n, err := stream.Read(room)
	check(err)
	digest := strings.Fields(string(room[:n]))[1]
	request := resp("EVALSHA", digest, "1", "api:u1", "1", "2000000", "1")
	return func() {
		_, _ = stream.Write(request)
		_, _ = stream.Read(room)
	}
}

func resp(words ...string) []byte {
	out := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		out += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	return []byte(out)
}

// bare sends a request encoded beforehand and reads its reply without decoding; blocking, without a deadline.
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
	figures = append([]float64(nil), figures...) // keeps the caller's order
	sort.Float64s(figures)
	fmt.Printf("%-44s %6.2f [%.2f-%.2f] %s\n", name, median(figures), figures[0], figures[len(figures)-1], unit)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
