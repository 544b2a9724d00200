//! Emulates hosts on one machine for the chaos test: a network namespace for each node, joined by a
//! bridge, with links that the test can cut.

use std::net::Ipv4Addr;
use std::process::Command;

/// The namespaces of one process. Dropping this value removes them.
#[derive(Debug)]
pub(super) struct Hosts {
    /// Common prefix of all names here.
    prefix: String,
    /// The third octet of every address.
    net: u8,
    count: usize,
}

/// Why a namespace could not be made or a link could not be cut.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// `ip` is missing.
    #[error("`ip` does not run, install iproute2: {0}")]
    Missing(std::io::Error),
    /// `ip` failed.
    #[error("`ip {command}` failed, network namespaces take root: {output}")]
    Refused {
        /// The arguments of `ip`.
        command: String,
        /// The output of `ip`.
        output: String,
    },
}

impl Hosts {
    /// Makes a bridge and `count` namespaces on it, of which there can be at most 253. The process
    /// must run as root.
    pub(super) fn create(count: usize) -> Result<Hosts, HostsError> {
        // Interface names can have at most 15 letters.
        let id = std::process::id();
        let net = u8::try_from(id % 200).expect("below 200") + 20;
        let hosts = Hosts {
            prefix: format!("sk{:x}", id & 0xffff),
            net,
            count,
        };
        let bridge = format!("{}b", hosts.prefix);
        run_ip(&["link", "add", &bridge, "type", "bridge"])?;
        run_ip(&["addr", "add", &format!("10.213.{net}.1/24"), "dev", &bridge])?;
        run_ip(&["link", "set", &bridge, "up"])?;
        for place in 0..count {
            hosts.add(place, &bridge)?;
        }
        Ok(hosts)
    }

    fn add(&self, place: usize, bridge: &str) -> Result<(), HostsError> {
        let (namespace, link) = (self.namespace(place), self.outer_link(place));
        let address = format!("{}/24", self.host_address(place));
        run_ip(&["netns", "add", &namespace])?;
        run_ip(&[
            "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &namespace,
        ])?;
        run_ip(&["link", "set", &link, "master", bridge, "up"])?;
        run_ip(&["-n", &namespace, "addr", "add", &address, "dev", "eth0"])?;
        run_ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        run_ip(&["-n", &namespace, "link", "set", "lo", "up"])
    }

    /// Returns the addresses, one for each host.
    pub(super) fn addresses(&self) -> Vec<Ipv4Addr> {
        (0..self.count)
            .map(|place| self.host_address(place))
            .collect()
    }

    /// Returns the command that starts a program on a host.
    pub(super) fn host_command(&self, place: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(place)]
            .map(str::to_owned)
            .to_vec()
    }

    /// Sets a host's link `up` or `down`.
    pub(super) fn set_link(&self, place: usize, state: &str) -> Result<(), HostsError> {
        run_ip(&["link", "set", &self.outer_link(place), state])
    }

    /// Drops everything that a host sends but not what it receives, or stops that.
    pub(super) fn set_mute(&self, place: usize, mute: bool) -> Result<(), HostsError> {
        let verb = if mute { "add" } else { "del" };
        let namespace = self.namespace(place);
        let rule = ["-n", &namespace, "rule", verb, "pref", "100", "blackhole"];
        run_ip(&rule)
    }

    fn host_address(&self, place: usize) -> Ipv4Addr {
        let last = u8::try_from(place + 2).expect("a net has room for 254 hosts");
        Ipv4Addr::new(10, 213, self.net, last)
    }

    fn namespace(&self, place: usize) -> String {
        format!("{}n{place}", self.prefix)
    }

    fn outer_link(&self, place: usize) -> String {
        format!("{}v{place}", self.prefix)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let namespaces = (0..self.count).map(|place| self.namespace(place));
        for namespace in namespaces {
            // A namespace that was never made cannot be removed.
            let _ = run_ip(&["netns", "del", &namespace]);
        }
        let _ = run_ip(&["link", "del", &format!("{}b", self.prefix)]);
    }
}

fn run_ip(arguments: &[&str]) -> Result<(), HostsError> {
    let ran = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(HostsError::Missing)?;
    if ran.status.success() {
        return Ok(());
    }
    Err(HostsError::Refused {
        command: arguments.join(" "),
        output: String::from_utf8_lossy(&ran.stderr).trim().to_owned(),
    })
}
