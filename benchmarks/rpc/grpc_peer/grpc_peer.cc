// A peer for `python -m benchmarks.rpc.bench_rpc`: the same calls by gRPC's own C++, so that one sees how much of a
// gain is Python's. Requests and answers are bytes: no messages are coded. `grpc_peer serve ADDRESS`
// prints ADDRESS:PORT, where it listens, and serves until its input ends;
// `grpc_peer call CALLS BYTES,BYTES,... ADDRESS:PORT...` calls all of these at once, so many times,
// and prints the median seconds, calls/s, and this process's processor seconds of a call.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using grpc::ByteBuffer;
using grpc::Slice;
using grpc::Status;

constexpr int kFrame = 16 << 20;  // as osucaffe/comm/channels/plain_grpc.py asks for

static double processor() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
         1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// Answers each call by a byte.
class Take : public grpc::CallbackGenericService {
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(Status::OK);
      Slice byte("\0", 1);
      answer_ = ByteBuffer(&byte, 1);
      StartWriteAndFinish(&answer_, grpc::WriteOptions(), Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    ByteBuffer request_, answer_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor;
  }
};

static int serve(const std::string& address) {
  Take service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument("grpc.http2.max_frame_size", kFrame);
  builder.AddChannelArgument("grpc.http2.lookahead_bytes", kFrame);
  builder.AddListeningPort(address + ":0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  auto server = builder.BuildAndStart();
  std::printf("%s:%d\n", address.c_str(), port);
  std::fflush(stdout);
  const double begun = processor();
  while (std::cin.get() != EOF) {
  }
  std::printf("%.9f\n", processor() - begun);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

struct Call {
  grpc::ClientContext context;
  ByteBuffer answer;
  Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

static int call(int calls, const std::string& sizes, int count, char** places) {
  std::vector<std::string> buffers;
  std::istringstream each(sizes);
  for (std::string size; std::getline(each, size, ',');)
    buffers.emplace_back(std::stoul(size), 'x');
  grpc::ChannelArguments options;
  options.SetMaxSendMessageSize(-1);
  options.SetInt("grpc.http2.max_frame_size", kFrame);
  options.SetInt("grpc.http2.lookahead_bytes", kFrame);
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (int n = 0; n < count; ++n)
    stubs.push_back(std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
        places[n], grpc::InsecureChannelCredentials(), options)));
  grpc::CompletionQueue queue;
  std::vector<double> times;
  const int warm = std::max(1, calls / 10);
  double used = 0, whole = 0;
  for (int n = -warm; n < calls; ++n) {
    if (n == 0) used = processor();
    const auto begun = std::chrono::steady_clock::now();
    std::vector<Slice> slices;  // they point to the buffers: nothing is copied here
    for (const auto& buffer : buffers)
      slices.emplace_back(buffer.data(), buffer.size(), Slice::STATIC_SLICE);
    const ByteBuffer payload(slices.data(), slices.size());
    std::vector<Call> under_way(stubs.size());
    for (size_t to = 0; to < stubs.size(); ++to) {
      Call& one = under_way[to];
      one.reader = stubs[to]->PrepareUnaryCall(&one.context, "/Payload/Take", payload, &queue);
      one.reader->StartCall();
      one.reader->Finish(&one.answer, &one.status, &one);
    }
    void* tag = nullptr;
    bool ok = false;
    for (size_t got = 0; got < stubs.size(); ++got)
      if (!queue.Next(&tag, &ok) || !static_cast<Call*>(tag)->status.ok()) return 1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (n >= 0) times.push_back(took.count()), whole += took.count();
  }
  used = (processor() - used) / (calls * stubs.size());
  std::sort(times.begin(), times.end());
  std::printf("%.9f %.1f %.9f\n", times[times.size() / 2], calls * stubs.size() / whole, used);
  return 0;
}

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "serve" && count == 3) return serve(words[2]);
  if (what == "call" && count > 4) return call(std::stoi(words[2]), words[3], count - 4, words + 4);
  std::fprintf(stderr, "grpc_peer serve ADDRESS | grpc_peer call CALLS BYTES,BYTES,... ADDRESS:PORT...\n");
  return 2;
}
