// Asks one or several rate limit services of Envoy the same questions, in their order: one JSON object per line of standard
// input, one JSON array per line of output with the answer of each service. With -load, asks the first question for that long
// and prints the latency. With -descriptors, prints the published descriptors of the service and of health checks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	unit "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type question struct {
	Domain      string
	Addend      uint32
	Descriptors []struct {
		Entries [][2]string
		Addend  *uint64
		Limit   *struct{ Requests, Unit uint32 }
	}
}

type status struct {
	Code      int32  `json:"code"`
	Limit     uint32 `json:"limit"`
	Unit      int32  `json:"unit"`
	Name      string `json:"name"`
	HasLimit  bool   `json:"has_limit"`
	Remaining uint32 `json:"remaining"`
	Reset     int64  `json:"reset"`
}

type answer struct {
	Code     int32    `json:"code"`
	Statuses []status `json:"statuses"`
}

func (q question) request() *rls.RateLimitRequest {
	request := &rls.RateLimitRequest{Domain: q.Domain, HitsAddend: q.Addend}
	for _, given := range q.Descriptors {
		descriptor := &common.RateLimitDescriptor{}
		for _, pair := range given.Entries {
			entry := &common.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]}
			descriptor.Entries = append(descriptor.Entries, entry)
		}
		if given.Addend != nil {
			descriptor.HitsAddend = wrapperspb.UInt64(*given.Addend)
		}
		if given.Limit != nil {
			descriptor.Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: given.Limit.Requests, Unit: unit.RateLimitUnit(given.Limit.Unit),
			}
		}
		request.Descriptors = append(request.Descriptors, descriptor)
	}
	return request
}

func ask(service rls.RateLimitServiceClient, request *rls.RateLimitRequest) answer {
	response, err := service.ShouldRateLimit(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	result := answer{Code: int32(response.OverallCode), Statuses: []status{}}
	for _, each := range response.Statuses {
		limit := each.GetCurrentLimit()
		result.Statuses = append(result.Statuses, status{
			Code: int32(each.Code), Limit: limit.GetRequestsPerUnit(), Unit: int32(limit.GetUnit()), Name: limit.GetName(),
			HasLimit: limit != nil, Remaining: each.LimitRemaining, Reset: each.GetDurationUntilReset().GetSeconds(),
		})
	}
	return result
}

// load asks over and over, each caller one request at a time, and prints the percentiles of the latency in microseconds.
func load(service rls.RateLimitServiceClient, request *rls.RateLimitRequest, duration time.Duration, callers int) {
	var mutex sync.Mutex
	var all []time.Duration
	var group sync.WaitGroup
	end := time.Now().Add(duration)
	for range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			var own []time.Duration
			for time.Now().Before(end) {
				start := time.Now()
				ask(service, request)
				own = append(own, time.Since(start))
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(all, own...)
		}()
	}
	group.Wait()
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	at := func(part float64) int64 { return all[int(part*float64(len(all)-1))].Microseconds() }
	fmt.Printf(`{"requests": %d, "p50_us": %d, "p99_us": %d}`+"\n", len(all), at(0.5), at(0.99))
}

// descriptors returns the files of both services, each after those that it imports.
func descriptors() []byte {
	set, seen := &descriptorpb.FileDescriptorSet{}, map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	add(rls.File_envoy_service_ratelimit_v3_rls_proto)
	add(health.File_grpc_health_v1_health_proto)
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		log.Fatal(err)
	}
	return bytes
}

func main() {
	printsDescriptors := flag.Bool("descriptors", false, "print a FileDescriptorSet")
	duration := flag.Duration("load", 0, "how long to ask the first question")
	callers := flag.Int("callers", 8, "requests in flight under -load")
	flag.Parse()
	if *printsDescriptors {
		os.Stdout.Write(descriptors())
		return
	}
	var services []rls.RateLimitServiceClient
	for _, address := range flag.Args() {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			log.Fatal(err)
		}
		services = append(services, rls.NewRateLimitServiceClient(connection))
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			log.Fatal(err)
		}
		if *duration > 0 {
			load(services[0], q.request(), *duration, *callers)
			return
		}
		var answers []answer
		for _, service := range services {
			answers = append(answers, ask(service, q.request()))
		}
		line, _ := json.Marshal(answers)
		output.Write(append(line, '\n'))
	}
}
