// The net/http application that is driven while the daemon fails. It listens at PORT of 127.0.0.1. TIDEGATE_SOCKET
// is the daemon's socket; WITHOUT_LIMITER=1 is the application alone, for comparison.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/clients/go"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "path %s\n", r.URL.Path)
	})
	mux.HandleFunc("/boom", func(http.ResponseWriter, *http.Request) { panic("boom") })
	mux.HandleFunc("/fail", func(w http.ResponseWriter, r *http.Request) {
		tidegate.FromContext(r.Context()).SetOutcome(tidegate.Failed)
		http.Error(w, "failed", http.StatusInternalServerError)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		ms, _ := strconv.Atoi(r.URL.Query().Get("ms"))
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			fmt.Fprintln(w, "path /slow")
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < 3; i++ {
			fmt.Fprintf(w, "chunk %d\n", i)
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	})
	application := entered(mux)
	if os.Getenv("WITHOUT_LIMITER") != "1" {
		application = tidegate.New().Middleware(tidegate.HTTP{
			Domain: "api",
			User:   func(r *http.Request) string { return r.Header.Get("X-User") },
		})(application)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, recovered(begun(application))))
}

type beginning struct{}

// begun stores the arrival time of a request, and entered sets the time until the application.
func begun(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), beginning{}, time.Now())))
	})
}

func entered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if began, ok := r.Context().Value(beginning{}).(time.Time); ok {
			w.Header().Set("X-Judged-Us", strconv.FormatInt(time.Since(began).Microseconds(), 10))
		}
		next.ServeHTTP(w, r)
	})
}

// recovered answers a panic with 500, as frameworks do; net/http alone would hang up.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "boom", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
