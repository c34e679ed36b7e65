package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tidegate/tidegate/clients/go"
)

// crowd makes calls from many goroutines, with a pause after each call, and prints the number of degraded decisions.
func crowd(client *tidegate.Client, callers int, think time.Duration) {
	const each = 30
	took := make([]float64, callers*each)
	unjudged := atomic.Int64{}
	var all sync.WaitGroup
	began := time.Now()
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			user := tidegate.Attributes{{"user", i}}
			for j := 0; j < each; j++ {
				asked := time.Now()
				if client.Hit(context.Background(), "api", user).Degraded {
					unjudged.Add(1)
				}
				took[i*each+j] = float64(time.Since(asked).Microseconds()) / 1e3
				time.Sleep(think)
			}
		}(i)
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	fmt.Printf("%d callers, %v between calls: %d of %d not judged (1 of %.0f), %.0f calls/s, %d connections, missed %v\n",
		callers, think, unjudged.Load(), len(took), float64(len(took))/float64(unjudged.Load()), float64(len(took))/seconds,
		client.Stats().Connections, client.Stats().Missed)
	show("a call of these", took, "ms")
}

// paused stops the daemon for length while 8 goroutines call every millisecond, and prints the number of degraded
// decisions.
func paused(client *tidegate.Client, daemon *os.Process, length time.Duration) {
	const callers = 8
	calls, unjudged, stop := atomic.Int64{}, atomic.Int64{}, make(chan struct{})
	var all sync.WaitGroup
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			user := tidegate.Attributes{{"user", i}}
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				calls.Add(1)
				if client.Hit(context.Background(), "api", user).Degraded {
					unjudged.Add(1)
				}
			}
		}(i)
	}
	time.Sleep(300 * time.Millisecond)
	before := unjudged.Load()
	check(daemon.Signal(syscall.SIGSTOP))
	time.Sleep(length)
	check(daemon.Signal(syscall.SIGCONT))
	time.Sleep(time.Second)
	close(stop)
	all.Wait()
	fmt.Printf("a pause of %v under %d callers: %d of %d not judged (before it: %d), missed %v\n",
		length, callers, unjudged.Load()-before, calls.Load(), before, client.Stats().Missed)
}
