// The application that is driven while the daemon fails, for net/http. It listens at PORT of 127.0.0.1. TIDEGATE_SOCKET
// says where the daemon is; WITHOUT_LIMITER=1 is the application alone, to compare with.
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

// begun notes when a request reached what stands before the application, and entered says how long it took from there.
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

// recovered answers 500 to a panic, as frameworks do; net/http alone would hang up.
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
