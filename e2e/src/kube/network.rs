//! The bridge, its route and its firewall rule, and the kernel settings that pods need.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net::{BRIDGE, GATEWAY, SERVICES};
use crate::paths::Paths;
use crate::progress::wait_for;
use crate::run::{run, run_with_input};

/// The settings changed, and what they must be at least.
const SETTINGS: &[(&str, u64)] = &[
    ("net/ipv4/ip_forward", 1),
    ("net/bridge/bridge-nf-call-iptables", 1),
    ("fs/inotify/max_user_instances", 1024),
];

/// Our chain, first in FORWARD: what comes from the bridge goes nowhere else.
const CHAIN: &str = "FLOWER-E2E-FORWARD";

/// Makes the network; what is already there stays.
pub async fn up(paths: &Paths) -> Result<()> {
    settings(paths)?;
    if run("ip", &["link", "show", BRIDGE]).await.is_err() {
        run("ip", &["link", "add", BRIDGE, "type", "bridge"]).await?;
    }
    let addresses = run("ip", &["-4", "addr", "show", BRIDGE]).await?;
    if !addresses.contains(GATEWAY) {
        run(
            "ip",
            &["addr", "add", &format!("{GATEWAY}/16"), "dev", BRIDGE],
        )
        .await?;
    }
    run("ip", &["link", "set", BRIDGE, "up"]).await?;
    // A Service address that nobody has programmed yet answers nothing instead of leaving the machine.
    run(
        "ip",
        &["route", "replace", SERVICES, "dev", BRIDGE, "src", GATEWAY],
    )
    .await?;
    if run("iptables", &["-w", "-n", "-L", CHAIN]).await.is_err() {
        run("iptables", &["-w", "-N", CHAIN]).await?;
    }
    for (chain, rule) in [
        (CHAIN, vec!["-i", BRIDGE, "!", "-o", BRIDGE, "-j", "DROP"]),
        (CHAIN, vec!["!", "-i", BRIDGE, "-o", BRIDGE, "-j", "DROP"]),
        ("FORWARD", vec!["-j", CHAIN]),
    ] {
        let check = [vec!["-w", "-C", chain], rule.clone()].concat();
        if run("iptables", &check).await.is_err() {
            run("iptables", &[vec!["-w", "-I", chain], rule].concat()).await?;
        }
    }
    Ok(())
}

/// Sets the kernel's settings and keeps what they were for `down`.
fn settings(paths: &Paths) -> Result<()> {
    let bridge_filter = std::path::Path::new("/proc/sys/net/bridge");
    if !bridge_filter.exists() {
        let _ = std::process::Command::new("modprobe")
            .arg("br_netfilter")
            .status();
    }
    let kept = paths.at("settings-before.json")?;
    let mut before: BTreeMap<String, String> = std::fs::read_to_string(&kept)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    for (setting, least) in SETTINGS {
        let file = format!("/proc/sys/{setting}");
        let value = std::fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
        let value = value.trim();
        if value.parse::<u64>().is_ok_and(|value| value >= *least) {
            continue;
        }
        before
            .entry((*setting).to_owned())
            .or_insert_with(|| value.to_owned());
        paths.write("settings-before.json", &serde_json::to_string(&before)?)?;
        std::fs::write(&file, least.to_string()).with_context(|| format!("writing {file}"))?;
    }
    Ok(())
}

/// Removes the bridge with its route, every rule and chain of Kubernetes, CNI and ours, and restores the settings.
pub async fn down(paths: &Paths) -> Result<()> {
    for family in ["iptables", "ip6tables"] {
        remove_rules(family).await?;
    }
    if run("ip", &["link", "show", BRIDGE]).await.is_ok() {
        run("ip", &["link", "delete", BRIDGE]).await?;
    }
    // The kernel takes the pods' links away shortly after their namespaces.
    wait_for(
        "removing the pods' links",
        Duration::from_secs(15),
        || async {
            let links = run("ip", &["-o", "link", "show", "type", "bridge_slave"])
                .await
                .unwrap_or_default();
            anyhow::ensure!(!links.contains(BRIDGE), "{links}");
            Ok(())
        },
    )
    .await?;
    if let Ok(text) = std::fs::read_to_string(paths.state().join("settings-before.json")) {
        let before: BTreeMap<String, String> = serde_json::from_str(&text)?;
        for (setting, value) in before {
            std::fs::write(format!("/proc/sys/{setting}"), value)?;
        }
    }
    Ok(())
}

/// Whether a chain was made by Kubernetes, by CNI or by this harness.
pub fn is_ours(chain: &str) -> bool {
    ["KUBE-", "CNI-", "FLOWER-E2E-"]
        .iter()
        .any(|prefix| chain.starts_with(prefix))
}

/// Removes our chains and every rule that jumps to one.
async fn remove_rules(family: &str) -> Result<()> {
    let Ok(saved) = run(format!("{family}-save"), &[] as &[&str]).await else {
        return Ok(());
    };
    let edit = removal(&saved);
    if !edit.is_empty() {
        run_with_input(format!("{family}-restore"), &["-w", "--noflush"], &edit).await?;
    }
    Ok(())
}

/// The edit, in the language of iptables-restore, that takes our part out of a saved rule set.
fn removal(saved: &str) -> String {
    let mut edit = String::new();
    let (mut table, mut rules, mut flushes, mut deletions) =
        (String::new(), String::new(), String::new(), String::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.to_owned();
            (rules, flushes, deletions) = Default::default();
        } else if let Some(chain) = line
            .strip_prefix(':')
            .and_then(|rest| rest.split(' ').next())
        {
            if is_ours(chain) {
                flushes.push_str(&format!(":{chain} - [0:0]\n"));
                deletions.push_str(&format!("-X {chain}\n"));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = rule.split(' ');
            let chain = words.next().unwrap_or_default();
            let target = words
                .skip_while(|word| *word != "-j" && *word != "-g")
                .nth(1)
                .unwrap_or_default();
            if !is_ours(chain) && is_ours(target) {
                rules.push_str(&format!("-D {rule}\n"));
            }
        } else if line == "COMMIT" && !(rules.is_empty() && flushes.is_empty()) {
            edit.push_str(&format!("*{table}\n{flushes}{rules}{deletions}COMMIT\n"));
        }
    }
    edit
}

#[cfg(test)]
mod tests {
    use super::removal;

    #[test]
    fn only_our_part_is_removed() {
        let saved = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n:MINE - [0:0]\n\
                     -A INPUT -j MINE\n-A FORWARD -m comment --comment \"kubernetes rules\" -j KUBE-FORWARD\n\
                     -A KUBE-FORWARD -j ACCEPT\nCOMMIT\n*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(
            removal(saved),
            "*filter\n:KUBE-FORWARD - [0:0]\n-D FORWARD -m comment --comment \"kubernetes rules\" -j KUBE-FORWARD\n\
             -X KUBE-FORWARD\nCOMMIT\n"
        );
    }
}
