// Command fakegpu is a kubelet device plugin that offers nvidia.com/gpu devices which are not there.
//
//	FAKE_GPUS     how many (default 4)
//	FAKE_GPU_BAD  a file with the ids (gpu-0 ...) that are unhealthy now; it may not exist
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	endpoint = "fakegpu.sock"
	poll     = 200 * time.Millisecond
)

type server struct {
	plugin.UnimplementedDevicePluginServer
	count   int
	badFile string
}

func (s *server) devices() []*plugin.Device {
	content, _ := os.ReadFile(s.badFile)
	bad := strings.Fields(string(content))
	devices := make([]*plugin.Device, s.count)
	for i := range devices {
		id, health := fmt.Sprintf("gpu-%d", i), plugin.Healthy
		if slices.Contains(bad, id) {
			health = plugin.Unhealthy
		}
		devices[i] = &plugin.Device{ID: id, Health: health}
	}
	return devices
}

func (s *server) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		devices := s.devices()
		if now := fmt.Sprint(devices); now != sent {
			if err := stream.Send(&plugin.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(poll):
		}
	}
}

func (s *server) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		env := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{Envs: env})
	}
	return response, nil
}

func count() int {
	text := os.Getenv("FAKE_GPUS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		log.Fatalf("FAKE_GPUS=%s must be a number of devices, such as 4", text)
	}
	return n
}

func register() {
	connection, err := grpc.NewClient("unix://"+plugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	request := &plugin.RegisterRequest{Version: plugin.Version, Endpoint: endpoint, ResourceName: resource}
	for {
		if _, err = plugin.NewRegistrationClient(connection).Register(context.Background(), request); err == nil {
			return
		}
		time.Sleep(poll)
	}
}

func main() {
	socket := plugin.DevicePluginPath + endpoint
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	plugin.RegisterDevicePluginServer(grpcServer, &server{count: count(), badFile: os.Getenv("FAKE_GPU_BAD")})
	go func() { log.Fatal(grpcServer.Serve(listener)) }()
	register()
	log.Print("registered")
	// A kubelet that starts empties the directory: end then, the supervisor starts this anew.
	for {
		time.Sleep(poll)
		if _, err := os.Stat(socket); err != nil {
			log.Fatal("the kubelet was restarted")
		}
	}
}
