// Closed-loop clients of etcd: each puts a value of 256 bytes, waits for the answer, and puts again.
// Prints one line of JSON. Built with Debian's golang-etcd-server-dev, see etcd.sh.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
)

const connectionsMax = 16

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

// leader returns the endpoint of the member that leads.
func leader(endpoints []string) string {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for {
		for _, endpoint := range endpoints {
			status, err := client.Status(context.Background(), endpoint)
			if err == nil && status.Leader == status.Header.MemberId {
				return endpoint
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	endpoints, clients, seconds := strings.Split(os.Args[1], ","), number(os.Args[2]), number(os.Args[3])
	target := leader(endpoints)
	connections := []*clientv3.Client{}
	for len(connections) < clients && len(connections) < connectionsMax {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{target}})
		if err != nil {
			panic(err)
		}
		connections = append(connections, client)
	}
	value := strings.Repeat("v", 256)
	begin := time.Now()
	from, until := begin.Add(time.Second), begin.Add(time.Second+time.Duration(seconds)*time.Second)
	latencies := make([][]float64, clients)
	var all sync.WaitGroup
	for client := 0; client < clients; client++ {
		all.Add(1)
		go func(client int) {
			defer all.Done()
			connection := connections[client%len(connections)]
			for count := 0; time.Now().Before(until); count++ {
				key := fmt.Sprintf("%04d-%05d", client, count%1000)
				asked := time.Now()
				if _, err := connection.Put(context.Background(), key, value); err != nil {
					panic(err)
				}
				if asked.After(from) {
					latencies[client] = append(latencies[client], float64(time.Since(asked).Microseconds())/1000)
				}
			}
		}(client)
	}
	all.Wait()
	merged := []float64{}
	for _, part := range latencies {
		merged = append(merged, part...)
	}
	sort.Float64s(merged)
	json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
		"clients":               clients,
		"operations_per_second": float64(len(merged)) / float64(seconds),
		"p50_ms":                merged[len(merged)/2],
		"p99_ms":                merged[len(merged)*99/100],
	})
}
