// As client.py, with the same output: client NAME SOCKET OUT PAUSE_MS. A Go process does not fork.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/tidegate/tidegate/clients/go"
)

var (
	mix   = strings.Fields("steady fleet calm work steady fleet window steady calm fleet work denied steady fleet calm work")
	users = map[string]string{"steady": "s", "fleet": "f", "window": "v", "work": "w", "denied": "d"}
	holds = []float64{0.01, 0.05, 0.3}
)

type work struct {
	until    float64
	number   int
	decision *tidegate.Decision
}

func main() {
	name, path, out := os.Args[1], os.Args[2], os.Args[3]
	pause, _ := strconv.ParseFloat(os.Args[4], 64)
	file, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		panic(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	client := tidegate.New(tidegate.WithSocket(path))
	var held []work
	for number := 1; ; number++ {
		held = step(client, file, name, number, held)
		select {
		case <-ended:
			for _, one := range held {
				end(file, one)
			}
			os.Exit(0)
		case <-time.After(time.Duration(pause * float64(time.Millisecond))):
		}
	}
}

// step sends one request, and releases leases whose time has come.
func step(client *tidegate.Client, file *os.File, name string, number int, held []work) (left []work) {
	defer func() {
		if failed := recover(); failed != nil {
			fmt.Fprintf(file, "X %q\n", fmt.Sprint(failed))
			left = held
		}
	}()
	kind, user := mix[number%len(mix)], name
	if users[kind] != "" {
		user = users[kind] + strconv.Itoa(number/len(mix)%2)
	}
	ask := client.Hit
	if kind == "work" {
		ask = client.Acquire
	}
	began := now()
	d := ask(context.Background(), "api", tidegate.Attributes{{"kind", kind}, {"user", user}})
	retry := d.RetryAfter.Seconds()
	if d.RetryAfter == tidegate.Never {
		retry = -1
	}
	lease := 0
	if d.Lease != 0 {
		lease = 1
		held = append(held, work{now() + holds[number%len(holds)], number, d})
	}
	fmt.Fprintf(file, "C %f %f %d %s %s %s %s %s %f %d\n",
		began, now(), number, kind, user, d.Verdict, or(d.Reason), or(d.Rule), retry, lease)
	for _, one := range held {
		if one.until < now() {
			end(file, one)
		} else {
			left = append(left, one)
		}
	}
	return left
}

func end(file *os.File, one work) {
	fmt.Fprintf(file, "R %f %d\n", now(), one.number)
	one.decision.Release()
}

func or(word string) string {
	if word == "" {
		return "-"
	}
	return word
}

// now returns the machine's monotonic time, as in the other clients.
func now() float64 {
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&t)), 0)
	return float64(t.Sec) + float64(t.Nsec)/1e9
}
