// KEDA's calls of an external scaler, by KEDA's own stubs: main HOST:PORT GROUP.
// The streams follow KEDA 2.21's externalPushScaler: only io.EOF resets its backoff. It prints each answer as it comes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const patience = 120 * time.Second

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection := must(grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`)))
	scaler := pb.NewExternalScalerClient(connection)
	ref := &pb.ScaledObjectRef{Name: "billing", Namespace: "shop", ScalerMetadata: map[string]string{
		"scalerAddress": os.Args[1], "within": "5m", "group": os.Args[2], "topics": "orders", "target": "10"}}

	spec := must(scaler.GetMetricSpec(ctx, ref)).MetricSpecs[0]
	fmt.Println("spec", spec.MetricName, spec.TargetSizeFloat)
	value := must(scaler.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.MetricName}))
	fmt.Println("metric", value.MetricValues[0].MetricName, value.MetricValues[0].MetricValueFloat)
	fmt.Println("active", must(scaler.IsActive(ctx, ref)).Result)

	active := must(scaler.StreamIsActive(ctx, ref))
	fmt.Println("stream active", must(active.Recv()).Result)
	specs := must(scaler.StreamMetricSpec(ctx, ref))
	fmt.Println("stream spec", must(specs.Recv()).MetricSpecs[0].TargetSizeFloat)
	fmt.Println("streams are open")
	_, err := active.Recv()
	fmt.Println("active ended with EOF", errors.Is(err, io.EOF))
	_, err = specs.Recv()
	fmt.Println("specs ended with EOF", errors.Is(err, io.EOF))
}
