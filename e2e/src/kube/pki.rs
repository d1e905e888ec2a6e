//! Certificates of one cluster: a CA, the servers, and one client certificate a user.

use std::net::IpAddr;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::net::{API_PORT, API_SERVICE, GATEWAY, Node};
use crate::paths::Paths;

/// Makes everything once; a folder that is already there is whole and stays.
pub fn make(paths: &Paths) -> Result<()> {
    if paths.pki("").is_dir() {
        return Ok(());
    }
    let part = paths.dir("pki.part")?;
    let save = |name: &str, kind: &str, pem: String| {
        std::fs::write(part.join(format!("{name}.{kind}")), pem)
    };

    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::CrlSign,
    ];
    ca.distinguished_name = name("flower-e2e", None);
    let ca_certificate = ca.self_signed(&ca_key)?;
    save("ca", "crt", ca_certificate.pem())?;
    save("ca", "key", ca_key.serialize_pem())?;
    let issuer = Issuer::new(ca, ca_key);

    let issue = |file: &str, common: &str, organization: Option<&str>, names: &[&str]| {
        let (certificate, key) = issue(&issuer, name(common, organization), names)?;
        save(file, "crt", certificate)?;
        anyhow::Ok(save(file, "key", key)?)
    };
    let api_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        API_SERVICE,
        GATEWAY,
    ];
    issue("apiserver", "kube-apiserver", None, &api_names)?;
    issue(
        "kubelet-client",
        "kube-apiserver-kubelet-client",
        Some("system:masters"),
        &[],
    )?;
    for (user, common, organization) in USERS {
        issue(user, common, *organization, &[])?;
    }
    for node in Node::ALL {
        let node = node.name();
        issue(
            &node,
            &format!("system:node:{node}"),
            Some("system:nodes"),
            &[&node, GATEWAY],
        )?;
    }
    let accounts = KeyPair::generate()?;
    save("service-accounts", "key", accounts.serialize_pem())?;
    save("service-accounts", "pub", accounts.public_key_pem())?;
    std::fs::rename(&part, paths.state().join("pki"))?;
    Ok(())
}

/// A certificate for a client and server, and its key.
fn issue(
    issuer: &Issuer<'_, KeyPair>,
    subject: DistinguishedName,
    names: &[&str],
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = subject;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    for san in names {
        params.subject_alt_names.push(match san.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*san).try_into()?),
        });
    }
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

/// The users besides the nodes: file name, common name, organization.
const USERS: &[(&str, &str, Option<&str>)] = &[
    ("admin", "flower-e2e-admin", Some("system:masters")),
    ("controllers", "system:kube-controller-manager", None),
    ("scheduler", "system:kube-scheduler", None),
    ("proxy", "system:kube-proxy", None),
];

fn name(common: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}

/// Writes a kubeconfig for every user and node.
pub fn kubeconfigs(paths: &Paths) -> Result<()> {
    let nodes = Node::ALL.map(Node::name);
    for user in USERS
        .iter()
        .map(|(user, ..)| *user)
        .chain(nodes.iter().map(String::as_str))
    {
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: flower-e2e\n  cluster:\n    server: https://{GATEWAY}:{API_PORT}\n    certificate-authority: {ca}\n\
             users:\n\
             - name: {user}\n  user:\n    client-certificate: {certificate}\n    client-key: {key}\n\
             contexts:\n\
             - name: flower-e2e\n  context: {{cluster: flower-e2e, user: {user}}}\n\
             current-context: flower-e2e\n",
            ca = paths.pki("ca.crt").display(),
            certificate = paths.pki(&format!("{user}.crt")).display(),
            key = paths.pki(&format!("{user}.key")).display(),
        );
        paths.write(format!("{user}.kubeconfig"), &text)?;
    }
    Ok(())
}
