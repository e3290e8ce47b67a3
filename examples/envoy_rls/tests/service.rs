//! The program with a real Redis, a client of its own, and Envoy.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tokio::time::sleep;
use tonic::{Code as Grpc, transport::Channel};

const PATIENCE: Duration = Duration::from_secs(30);

/// A program of a test, which ends with it.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service and its Redis, in a folder of their own.
struct Service {
    folder: PathBuf,
    redis: Option<Program>,
    _program: Program,
    address: String,
}

impl Service {
    fn start(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        // The path of a socket has at most 108 bytes.
        let socket = env::temp_dir().join(format!("{name}-{}.sock", std::process::id()));
        let mut redis = Command::new("redis-server");
        redis.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        let redis = Program(redis.stdout(Stdio::null()).spawn().expect("redis-server runs"));
        wait_for("the socket of Redis", || socket.exists());
        let mut program = Command::new(env!("CARGO_BIN_EXE_envoy-rls"));
        program.arg(format!("unix://{}", socket.display()));
        program.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/limits.toml"));
        program.env("ADDR", "127.0.0.1:0").stdout(Stdio::piped());
        let mut program = Program(program.spawn().expect("the service runs"));
        let mut line = String::new();
        let output = program.0.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Self { folder, redis: Some(redis), _program: program, address }
    }

    async fn client(&self) -> RateLimitServiceClient<Channel> {
        let address = format!("http://{}", self.address);
        RateLimitServiceClient::connect(address).await.expect("a client")
    }
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// Asks for a login from an address, which two limits count, beside an entry without a limit.
async fn login(
    client: &mut RateLimitServiceClient<Channel>,
    address: &str,
    hits_addend: u32,
) -> RateLimitResponse {
    let descriptors = vec![
        descriptor(&[("path", "/login"), ("remote_address", address)]),
        descriptor(&[("other", "x")]),
        descriptor(&[("remote_address", address)]),
    ];
    let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend };
    client.should_rate_limit(request).await.expect("a response").into_inner()
}

fn left(response: &RateLimitResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(|status| status.code()).collect()
}

#[tokio::test]
async fn every_descriptor_has_a_status_and_a_denial_charges_none() {
    let service = Service::start("statuses");
    let mut client = service.client().await;
    let first = login(&mut client, "203.0.113.1", 0).await;
    assert_eq!(first.overall_code(), Code::Ok);
    assert_eq!(codes(&first), [Code::Ok; 3]);
    assert_eq!(left(&first), [4, 0, 19]);
    assert!(first.response_headers_to_add.is_empty());
    let limit = first.statuses[0].current_limit.clone().expect("a limit");
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("login", 5));
    assert_eq!(limit.unit(), Unit::Minute);
    assert_eq!(first.statuses[1].current_limit, None);
    let reset = first.statuses[0].duration_until_reset.expect("a time");
    assert_eq!((reset.seconds, reset.nanos), (12, 0));

    let five = login(&mut client, "203.0.113.1", 5).await;
    assert_eq!(five.overall_code(), Code::OverLimit);
    assert_eq!(codes(&five), [Code::OverLimit, Code::Ok, Code::Ok]);
    let header = &five.response_headers_to_add[0];
    let wait: u32 = header.value.parse().expect("seconds");
    assert!(header.key == "retry-after" && (11..=12).contains(&wait), "{header:?}");

    let four = login(&mut client, "203.0.113.1", 4).await;
    assert_eq!(four.overall_code(), Code::Ok, "the denial charged nothing");
    assert_eq!(left(&four)[0], 0);
    let other = login(&mut client, "203.0.113.2", 0).await;
    assert_eq!(left(&other)[0], 4, "each address has its own account");
}

#[tokio::test]
async fn a_request_without_a_limit_is_ok_and_a_failure_is_an_error() {
    let mut service = Service::start("failures");
    let mut client = service.client().await;
    let request = RateLimitRequest {
        domain: "elsewhere".into(),
        descriptors: vec![descriptor(&[("remote_address", "203.0.113.1")])],
        hits_addend: 0,
    };
    let response = client.should_rate_limit(request).await.expect("a response").into_inner();
    assert_eq!((response.overall_code(), codes(&response)), (Code::Ok, vec![Code::Ok]));

    service.redis = None;
    let request = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor(&[("remote_address", "203.0.113.1")])],
        hits_addend: 0,
    };
    let error = client.should_rate_limit(request).await.expect_err("no Redis");
    assert_eq!(error.code(), Grpc::Unavailable);
}

/// Envoy asks the service for each request. It is also the server behind itself.
const ENVOY: &str = r#"
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: FRONT } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          delayed_close_timeout: 0s
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 5s
              failure_mode_deny: true
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service: { envoy_grpc: { cluster_name: limits } }
          - &router
            name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
          route_config:
            virtual_hosts:
            - name: shop
              domains: ["*"]
              routes: [{ match: { prefix: / }, route: { cluster: shop } }]
              rate_limits:
              - actions:
                - request_headers: { header_name: ":path", descriptor_key: path }
                - remote_address: {}
  - address: { socket_address: { address: 127.0.0.1, port_value: BEHIND } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: behind
          http_filters: [*router]
          route_config:
            virtual_hosts:
            - name: shop
              domains: ["*"]
              routes: [{ match: { prefix: / }, direct_response: { status: 200 } }]
  clusters:
  - name: shop
    type: STATIC
    load_assignment:
      cluster_name: shop
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: BEHIND } } } }] }]
  - name: limits
    type: STATIC
    http2_protocol_options: {}
    load_assignment:
      cluster_name: limits
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: SERVICE } } } }] }]
"#;

/// Needs Envoy: `scripts/release-check` installs it, and sets `ENVOY`.
#[tokio::test]
async fn envoy_denies_what_the_service_denies() {
    let envoy = env::var_os("ENVOY").expect("ENVOY: the path of a program of Envoy");
    let service = Service::start("envoy");
    let address: SocketAddr = service.address.parse().expect("an address");
    let front = free_address();
    let config = ENVOY.replace("FRONT", &front.port().to_string());
    let config = config.replace("BEHIND", &free_address().port().to_string());
    let config = config.replace("SERVICE", &address.port().to_string());
    let file = service.folder.join("envoy.yaml");
    fs::write(&file, config).expect("a file");
    let mut envoy = Command::new(envoy);
    envoy.arg("-c").arg(&file).args(["--concurrency", "1", "--use-dynamic-base-id", "-l", "error"]);
    let _envoy = Program(envoy.spawn().expect("envoy runs"));
    let start = Instant::now();
    let mut responses = Vec::new();
    while responses.len() < 7 {
        assert!(start.elapsed() < PATIENCE, "{responses:?}");
        match get(front).await {
            Some(response) => responses.push(response),
            None => sleep(Duration::from_millis(50)).await,
        }
    }
    let statuses: Vec<&str> = responses.iter().map(|it| &it[..12]).collect();
    let expected = [["HTTP/1.1 200"; 5].as_slice(), &["HTTP/1.1 429"; 2]].concat();
    assert_eq!(statuses, expected, "{responses:?}");
    assert!(responses[0].contains("x-ratelimit-remaining: 4\r\n"), "{responses:?}");
    assert!(responses[5].contains("x-ratelimit-limit: 5, 5;w=60"), "{responses:?}");
    assert!(responses[5].contains("retry-after: 1"), "{responses:?}");
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// Returns the response to a login through Envoy, or nothing while it does not listen.
async fn get(address: SocketAddr) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = b"GET /login HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    Some(response)
}
