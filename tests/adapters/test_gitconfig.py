"""Configuration, route, identity and credentials, compared with what git itself says of the same files and environment."""

from __future__ import annotations

import random
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kubectl_gpu_transition.adapters import credentials, githttp, identity, route
from kubectl_gpu_transition.adapters.gitconfig import ConfigError, GitConfig, load_config, match_glob, parse_bool, parse_config
from kubectl_gpu_transition.adapters.route import Location, Target, find_target, locate, match_url, redact
from kubectl_gpu_transition.model import Identity, Problem
from tests.adapters.gitworld import World

NOW = 1_700_000_000.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def load(world: World, repo: Path | None = None, branch: str | None = "main", **environ: str) -> GitConfig:
    common = world.checkout / ".git"
    git_dir = common if repo is None else common / "worktrees" / repo.name
    return load_config(str(git_dir), str(common), branch, {**world.env, **environ})


def listed(world: World, repo: Path | None = None, **environ: str) -> list[tuple[str, str | None]]:
    """``git config --list``: lower-case names with the subsection as it is, and values (None for a name alone)."""
    entries = []
    for record in world.git("config", "--list", "--includes", "-z", cwd=repo, env=environ).split("\0")[:-1]:
        name, newline, value = record.partition("\n")
        entries.append((name, value if newline else None))
    return entries


def flat(config: GitConfig) -> list[tuple[str, str | None]]:
    return [(".".join(part for part in (section, sub, name) if part is not None), value) for section, sub, name, value in config.entries]


ODD_FILES = {
    "quotes and escapes": '[a]\n\tx = "b c" d\n\ty = "tab\\there" ; comment\n\tz = a\\"b\\\\c # comment\n\tq = " lead and trail "  \n',
    "continued lines": '[a]\n\tx = one \\\n two \\\n   three\n\ty = "in quotes \\\n still"\n',
    "names without a value": "[core]\n\tbare = false\n[a]\n\tx\n\ty =\n\tz = \n",
    "subsections": '[A "Sub.Sect\\"ion\\\\x"]\n\tName = 1\n[a.OLD]\n\tX-y = 2\n[a   "two spaces"] z = 3\n[b.c "D"]\n\te = f\n',
    "comments and blanks": "# top\n; other\n\n   \n[a] ; after header\n  x=1;y\n  # in\n\ty = 2#3\n",
    "carriage returns": "[a]\r\n\tx = 1\r\n\ty = two words\r\n[b]\r\n\tz\r\n",
    "byte order mark": "\ufeff[a]\n\tx = 1\n",
    "spaces inside a value": "[a]\n\tx =   a   b   \n",
    "several of a name": "[a]\n\tx = 1\n\tx = 2\n[b]\n\tx = 0\n[a]\n\tx = 3\n",
    "empty": "",
    "end without newline": "[a]\n\tx = 1",
    "everything on one line": '[a "b"] x = 1',
    "bytes that are not UTF-8": "[a]\n\tx = \udcff\udcfe\n",
}


@pytest.mark.parametrize("text", ODD_FILES.values(), ids=ODD_FILES)
def test_a_file_is_read_as_git_reads_it(world: World, text: str) -> None:
    (world.home / ".gitconfig").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert flat(load(world)) == listed(world)


@pytest.mark.parametrize(
    "text", ["[a\n", "[a]\n1x = 1\n", '[a]\nx = "open\n', "[a]\nx = \\q\n", "[a b]\n", '[a "b]\n', "[a]\nx y\n", "[a]\n= 1\n", "[a_b]\n"]
)
def test_a_file_that_git_refuses_is_refused_with_its_line(world: World, text: str) -> None:
    (world.home / ".gitconfig").write_text("[ok]\n\tx = 1\n" + text)
    with pytest.raises(AssertionError, match="bad config"):
        world.git("config", "--list")
    with pytest.raises(ConfigError, match=r"\.gitconfig: bad line \d"):
        load(world)


def test_files_and_environment_count_in_gits_order(world: World, tmp_path: Path) -> None:
    (tmp_path / "system").write_text("[who]\n\tis = system\n")
    (world.home / ".config" / "git").mkdir(parents=True)
    (world.home / ".config" / "git" / "config").write_text("[who]\n\tis = xdg\n")
    (world.home / ".gitconfig").write_text("[who]\n\tis = user\n")
    world.git("config", "who.is", "repository")
    world.git("config", "extensions.worktreeConfig", "true")
    world.git("config", "--worktree", "who.is", "worktree")
    environ = {
        "GIT_CONFIG_NOSYSTEM": "false",
        "GIT_CONFIG_SYSTEM": str(tmp_path / "system"),
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "Who.Is",
        "GIT_CONFIG_VALUE_0": "environment",
        "GIT_CONFIG_KEY_1": "a.B.c",
        "GIT_CONFIG_VALUE_1": "",
        "GIT_CONFIG_PARAMETERS": "'who.is'='with a '\\''quote'",
    }
    config = load(world, **environ)
    assert flat(config) == listed(world, **environ)
    assert config.get_all("who", "is") == ["system", "xdg", "user", "repository", "worktree", "environment", "with a 'quote"]
    assert load(world, GIT_CONFIG_GLOBAL="/dev/null").get_all("who", "is") == ["repository", "worktree"]
    assert load(world, XDG_CONFIG_HOME=str(tmp_path)).get_all("who", "is") == ["user", "repository", "worktree"]
    assert load(world, HOME="").get_all("who", "is") == ["repository", "worktree"]


def test_a_bad_environment_is_refused(world: World) -> None:
    for environ in (
        {"GIT_CONFIG_COUNT": "x"},
        {"GIT_CONFIG_COUNT": "1"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "nodot", "GIT_CONFIG_VALUE_0": "v"},
        {"GIT_CONFIG_PARAMETERS": "'open"},
    ):
        with pytest.raises(ConfigError):
            load(world, **environ)


def test_includes_are_followed_as_git_follows_them(world: World, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    world.git("worktree", "add", "-q", "-b", "topic/x", str(linked))
    for name in ("plain", "nested", "gitdir", "dir", "case", "branch", "topic", "url", "no", "rel"):
        (world.home / f"{name}.inc").write_text(f"[got]\n\tit = {name}\n")
    (world.home / "nested.inc").write_text("[include]\n\tpath = rel.inc\n[got]\n\tit = nested\n")
    conditions = {
        "include": [("path", "~/plain.inc"), ("path", "nested.inc"), ("path", "missing.inc")],
        f'includeIf "gitdir:{world.checkout}/.git"': [("path", "gitdir.inc")],
        f'includeIf "gitdir:{tmp_path}/"': [("path", "dir.inc")],
        f'includeIf "gitdir/i:{str(world.checkout).upper()}/.GIT"': [("path", "case.inc")],
        'includeIf "onbranch:main"': [("path", "branch.inc")],
        'includeIf "onbranch:topic/"': [("path", "topic.inc")],
        f'includeIf "hasconfig:remote.*.url:{tmp_path}/**"': [("path", "url.inc")],
        'includeIf "gitdir:/nowhere/"': [("path", "no.inc")],
        'includeIf "gitdir:checkout/.git"': [("path", "rel.inc")],
        'includeIf "unknown:x"': [("path", "no.inc")],
    }
    text = "".join(f"[{header}]\n" + "".join(f"\t{k} = {v}\n" for k, v in pairs) for header, pairs in conditions.items())
    (world.home / ".gitconfig").write_text(text + "[user]\n\tname = x\n\temail = y\n")
    assert flat(load(world)) == listed(world)
    assert load(world).get_all("got", "it") == ["plain", "rel", "nested", "gitdir", "dir", "case", "branch", "url", "rel"]
    assert flat(load(world, linked, "topic/x")) == listed(world, linked)


def test_an_include_that_includes_itself_is_refused(world: World) -> None:
    (world.home / ".gitconfig").write_text("[include]\n\tpath = .gitconfig\n")
    with pytest.raises(ConfigError, match="nested includes"):
        load(world)


def test_generated_files_are_read_as_git_reads_them(world: World) -> None:
    choose = random.Random(7)
    pieces = [
        "[a]",
        '[b "C d"]',
        "\n",
        " ",
        "x",
        "y-1",
        "=",
        " = ",
        '"q r"',
        "plain text",
        "\\\n",
        "\\n",
        "\\t",
        ";",
        "#",
        "\n\tz = 1\n",
        '"',
        "\r\n",
    ]
    compared = 0
    for _ in range(150):
        text = "[s]\n" + "".join(choose.choice(pieces) for _ in range(choose.randint(1, 14)))
        (world.home / ".gitconfig").write_text(text, newline="")
        try:
            expected = listed(world)
        except AssertionError:
            with pytest.raises(ConfigError):
                load(world)
            continue
        assert flat(load(world)) == expected, text
        compared += 1
    assert compared > 15


@pytest.mark.parametrize("text", ["true", "YES", "on", "1", "-1", "2", "0", "no", "Off", "false", "", "0x0", "maybe", "1x"])
def test_booleans_are_gits(world: World, text: str) -> None:
    said = world.git("-c", f"a.b={text}", "config", "--type=bool", "a.b", check=False).strip()
    if said:
        assert parse_bool(text, "a.b") is (said == "true")
    else:
        with pytest.raises(ConfigError):
            parse_bool(text, "a.b")


def test_a_name_alone_is_true() -> None:
    assert GitConfig(tuple(parse_config(b"[a]\nb\n"))).get_bool("a", "b") is True


# ---------------------------------------------------------------- route


def target(world: World, branch: str = "main") -> Target:
    found = find_target(load(world), branch, str(world.checkout))
    assert isinstance(found, Target), found
    return found


def problem(world: World, branch: str = "main") -> str:
    found = find_target(load(world), branch, str(world.checkout))
    assert isinstance(found, Problem)
    return found.message


def test_the_route_is_the_upstream_else_origin_and_the_same_name(world: World) -> None:
    assert target(world).push_ref == "refs/heads/main"
    assert target(world).tracking == "refs/remotes/origin/main"
    world.git("config", "branch.main.merge", "refs/heads/prod")
    assert target(world).push_ref == "refs/heads/prod"
    assert target(world).tracking == "refs/remotes/origin/prod"
    assert target(world, "other").push_ref == "refs/heads/other"
    world.git("config", "branch.main.remote", "mirror")
    assert problem(world) == "remote mirror has no URL"


def test_a_push_remote_gets_the_local_branchs_name(world: World) -> None:
    world.git("remote", "add", "backup", "/srv/backup.git")
    world.git("config", "branch.main.merge", "refs/heads/prod")
    world.git("config", "remote.pushDefault", "backup")
    found = target(world)
    assert (found.push_url, found.push_ref, found.tracking) == ("/srv/backup.git", "refs/heads/main", "refs/remotes/backup/main")
    assert (found.fetch_url, found.fetch_ref, found.differs) == (str(world.remote), "refs/heads/prod", True)
    world.git("remote", "add", "third", "https://user:secret@example.com/third.git")
    world.git("config", "branch.main.pushRemote", "third")
    shown = target(world).shown()
    assert (shown.remote, shown.branch, shown.push_url) == ("third", "main", "https://example.com/third.git")


def test_a_push_remote_that_contradicts_the_upstream_is_refused(world: World) -> None:
    world.git("config", "branch.main.pushRemote", "origin")
    assert target(world).push_ref == "refs/heads/main"
    world.git("config", "branch.main.merge", "refs/heads/prod")
    assert "upstream refs/heads/prod but is to be pushed to refs/heads/main" in problem(world)


def test_several_push_urls_are_refused_without_their_user_part(world: World) -> None:
    world.git("config", "--add", "remote.origin.pushurl", "https://me:pw@one.example/x")
    world.git("config", "--add", "remote.origin.pushurl", "https://two.example/x")
    assert "2 push URLs (https://one.example/x, https://two.example/x)" in problem(world)


def test_a_local_upstream_and_an_odd_one_are_refused(world: World) -> None:
    world.git("config", "branch.main.merge", "refs/tags/v1")
    assert "which is not a branch" in problem(world)
    world.git("config", "branch.main.remote", ".")
    world.git("config", "branch.main.merge", "refs/heads/x")
    assert "is a local branch" in problem(world)
    world.git("config", "branch.main.remote", "origin")
    world.git("config", "--add", "branch.main.merge", "refs/heads/y")
    assert "several upstreams" in problem(world)


def test_urls_are_rewritten_as_git_rewrites_them(world: World) -> None:
    choose = random.Random(11)
    bases = ["https://git.example/", "git@git.example:", "/srv/", "ssh://git@h/"]
    starts = ["fleet:", "fleet:a/", "https://git.example/", "/srv/", "https://git.example/a"]
    urls = ["fleet:a/b.git", "https://git.example/a/b.git", "/srv/x.git", "git@h:x.git", "fleet:b"]
    for number in range(60):
        name = f"r{number}"
        lines = [f'[remote "{name}"]\n\turl = {choose.choice(urls)}\n']
        if choose.random() < 0.3:
            lines.append(f"\tpushurl = {choose.choice(urls)}\n")
        for _ in range(choose.randint(0, 3)):
            rule = choose.choice(["insteadOf", "pushInsteadOf"])
            lines.append(f'[url "{choose.choice(bases)}"]\n\t{rule} = {choose.choice(starts)}\n')
        (world.checkout / ".git" / "config").write_text("".join(lines) + f'[branch "main"]\n\tremote = {name}\n')
        pushes = world.git("remote", "get-url", "--push", "--all", name).splitlines()
        fetches = world.git("remote", "get-url", name).splitlines()
        found = find_target(load(world), "main", "/top")
        assert isinstance(found, Target) is (len(pushes) == 1), (lines, found, pushes)
        if isinstance(found, Target):
            assert (found.push_url, found.fetch_url) == (pushes[0], fetches[0]), lines


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/srv/x.git", Location("path", "/srv/x.git")),
        ("../x.git", Location("path", "../x.git")),
        ("./a:b", Location("path", "./a:b")),
        ("file:///srv/a%20b.git", Location("path", "/srv/a b.git")),
        ("host:x.git", Location("ssh", "x.git", host="host")),
        ("me@host:/srv/x.git", Location("ssh", "/srv/x.git", host="host", user="me")),
        ("[host:2222]:x.git", Location("ssh", "x.git", host="host", port=2222)),
        ("me@[::1]:x.git", Location("ssh", "x.git", host="::1", user="me")),
        ("ssh://me@host:22/srv/x.git", Location("ssh", "/srv/x.git", host="host", user="me", port=22)),
        ("ssh://host/~ada/x.git", Location("ssh", "~ada/x.git", host="host")),
        ("git+ssh://[::1]:22/x", Location("ssh", "/x", host="::1", port=22)),
        (
            "https://me:p%40w@host:8443/a/b.git",
            Location("http", "a/b.git", "https://host:8443/a/b.git", "host:8443", "me", "p@w", 8443),
        ),
        ("http://host/x", Location("http", "x", "http://host/x", "host")),
    ],
)
def test_urls_are_taken_apart_as_git_takes_them_apart(url: str, expected: Location) -> None:
    assert locate(url) == expected


@pytest.mark.parametrize(
    "url",
    ["ssh://-oProxyCommand=x/y", "-x@host:y", "host:-x", "ext::sh -c x", "git://host/x", "ssh:///x", "https://h:99999/x", "a@-b:", "[x:y"],
)
def test_urls_that_git_refuses_or_we_do_not_speak_are_refused(url: str) -> None:
    assert isinstance(locate(url), Problem)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x", "https://host/x"),
        ("fatal: unable to access 'https://tok@en:x@host/x/': no", "fatal: unable to access 'https://host/x/': no"),
        ("ssh://git@host/x and http://a:b@c", "ssh://host/x and http://c"),
        ("git@host:x", "host:x"),
        ("me@[::1]:x", "[::1]:x"),
        ("see git@host:x", "see git@host:x"),
        ("/srv/a@b:c", "/srv/a@b:c"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_urls_lose_their_user_part(text: str, shown: str) -> None:
    assert redact(text) == shown


# ---------------------------------------------------------------- identity

PEOPLE: dict[str, tuple[str, dict[str, str]]] = {
    "user": ("[user]\n\tname = Ada\n\temail = a@x\n", {}),
    "author and committer": ("[user]\n\tname = U\n\temail = u@x\n[author]\n\tname = A\n[committer]\n\temail = c@x\n", {}),
    "environment first": ("[user]\n\tname = U\n\temail = u@x\n", {"GIT_AUTHOR_NAME": "Env", "GIT_COMMITTER_EMAIL": "env@x"}),
    "EMAIL": ("[user]\n\tname = U\n", {"EMAIL": "mail@x"}),
    "stripped": ('[user]\n\tname = " ., <Ada> \\"Fleet\\" ;"\n\temail = "<a@x>"\n', {}),
    "brackets inside": ("[user]\n\tname = A<b>c\n\temail = a@x\n", {}),
    "useConfigOnly": ("[user]\n\tname = U\n\temail = u@x\n\tuseConfigOnly = true\n", {"EMAIL": "mail@x"}),
    "useConfigOnly without one": ("[user]\n\tname = U\n\tuseConfigOnly = true\n", {"EMAIL": "mail@x"}),
    "no name": ("[user]\n\temail = u@x\n\tuseConfigOnly = true\n", {}),
    "name of crud": ('[user]\n\tname = " . "\n\temail = u@x\n', {}),
    "empty name in the environment": ("[user]\n\tname = U\n\temail = u@x\n", {"GIT_AUTHOR_NAME": "", "GIT_COMMITTER_NAME": ""}),
    "empty address in the environment": ("[user]\n\tname = U\n\temail = u@x\n", {"GIT_AUTHOR_EMAIL": ""}),
    "not ASCII": ("[user]\n\tname = Ådå Ünïcode\n\temail = å@x\n", {}),
}


@pytest.mark.parametrize(("text", "environ"), PEOPLE.values(), ids=PEOPLE)
def test_author_and_committer_are_the_ones_git_would_choose(world: World, text: str, environ: dict[str, str]) -> None:
    (world.home / ".gitconfig").write_text(text)
    found = identity.find_identity(load(world, **environ), {**world.env, **environ}, "repo")
    for role in ("author", "committer"):
        said = world.git("var", f"GIT_{role.upper()}_IDENT", env=environ, check=False).rpartition("> ")[0]
        if isinstance(found, Problem):
            assert not said or role == "committer"
        else:
            assert getattr(found, role) + " " == said + "> "


def test_without_an_identity_the_remedy_is_gits_and_no_account_is_taken(world: World) -> None:
    (world.home / ".gitconfig").write_text("")
    found = identity.find_identity(load(world), world.env, "repo")
    assert isinstance(found, Problem)
    assert found.message == "git has no author name: neither user.name nor GIT_AUTHOR_NAME is set"
    assert found.remedy and found.remedy.startswith("git config --global user.name")


def test_signing_that_is_asked_for_is_a_problem_by_name(world: World) -> None:
    world.git("config", "commit.gpgSign", "true")
    found = identity.find_identity(load(world), world.env, "/fleet")
    assert isinstance(found, Problem)
    assert "not supported yet" in found.message
    assert found.remedy == "git -C /fleet config commit.gpgSign false"
    world.git("config", "commit.gpgSign", "false")
    assert isinstance(identity.find_identity(load(world), world.env, "/fleet"), Identity)


@pytest.mark.parametrize(
    "date",
    [
        "1700000000 +0130", "@1700000000 -0500", "@5 +0000", "2023-11-14T22:13:20+02:00", "2023-11-14 22:13:20 -0330",
        "2023-11-14T22:13:20Z", "Tue, 14 Nov 2023 22:13:20 +0100", "Tue, 14 Nov 2023 22:13:20 GMT", "2023-11-14 22:13:20",
        "Tue Nov 14 22:13:20 2023 +0100",
        "2023.11.14T22:13:20 +0000", "1700000000",
    ],
)  # fmt: skip
def test_dates_of_the_environment_are_read_as_git_reads_them(world: World, date: str) -> None:
    said = world.git("var", "GIT_AUTHOR_IDENT", env={"GIT_AUTHOR_DATE": date}).rpartition("> ")[2].strip()
    stamp = identity.find_stamp({"GIT_AUTHOR_DATE": date}, "author", NOW)
    assert identity.format_person("", stamp).strip() == said


def test_a_date_that_is_none_is_a_problem(world: World) -> None:
    environ = {**world.env, "GIT_COMMITTER_DATE": "the day after"}
    found = identity.find_identity(load(world), environ, "repo")
    assert isinstance(found, Problem) and "GIT_COMMITTER_DATE" in found.message


# ---------------------------------------------------------------- settings per URL, credentials, proxies

MATCHES = [
    ("https://example.com", "https://example.com/a/b.git"),
    ("https://example.com/", "https://example.com/a/b.git"),
    ("https://example.com/a", "https://example.com/a/b.git"),
    ("https://example.com/a/b.git", "https://example.com/a/b.git"),
    ("https://example.com/b", "https://example.com/a/b.git"),
    ("https://example.com/a", "https://example.com/ab/c.git"),
    ("https://*.example.com", "https://git.example.com/x"),
    ("https://*.example.com", "https://a.b.example.com/x"),
    ("https://example.com:443", "https://example.com/x"),
    ("https://example.com:8443", "https://example.com/x"),
    ("http://example.com", "https://example.com/x"),
    ("https://EXAMPLE.com", "https://example.com/x"),
    ("https://me@example.com", "https://example.com/x"),
    ("https://me@example.com", "https://me@example.com/x"),
    ("https://example.com", "https://me@example.com/x"),
]


@pytest.mark.parametrize(("pattern", "url"), MATCHES)
def test_settings_per_url_match_as_in_git(world: World, pattern: str, url: str) -> None:
    (world.home / ".gitconfig").write_text(f'[http "{pattern}"]\n\tproxy = found\n')
    said = world.git("config", "--get-urlmatch", "http.proxy", url, check=False).strip()
    assert (match_url(pattern, url) is not None) is (said == "found")


def test_the_most_specific_setting_counts(world: World) -> None:
    url = "https://git.example.com/a/b.git"
    lines = [
        ("https://git.example.com/a", "path"),
        ("https://*.example.com/a", "wild path"),
        ("https://git.example.com", "host"),
        ("https://*.example.com/a/b.git", "wild long path"),
    ]
    for kept in (lines, lines[::-1], lines[1:], lines[1:3], lines[3:]):
        (world.home / ".gitconfig").write_text("".join(f'[http "{p}"]\n\tproxy = {v}\n' for p, v in kept) + "[http]\n\tproxy = all\n")
        said = world.git("config", "--get-urlmatch", "http.proxy", url).strip()
        assert route.find_for_url(load(world), "http", "proxy", url)[-1] == said


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def ask(world: World, url: str, **environ: str) -> credentials.Credential | Problem:
    location = locate(url)
    assert isinstance(location, Location)
    return credentials.ask(location, load(world, **environ), {**world.env, **environ}, 10, lambda _: None)


def filled(world: World, url: str, **environ: str) -> tuple[str, str]:
    """What ``git credential fill`` says."""
    env = {**world.env, **environ}
    run = ["git", "credential", "fill"]
    done = subprocess.run(run, input=f"url={url}\n\n".encode(), cwd=world.checkout, env=env, capture_output=True, check=False)
    said = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    return said.get("username", ""), said.get("password", "")


def helper(world: World, name: str, user: str | None, password: str | None) -> Path:
    lines = [f"echo username={user}" if user else "", f"echo password={password}" if password else ""]
    return script(world.home / "bin" / name, 'case "$*" in *get) ;; *) exit 0;; esac; cat > "$0.asked"\n' + "\n".join(lines))


def helper_cases(world: World) -> Mapping[str, str]:
    helper(world, "git-credential-first", "ada", "one")
    second = helper(world, "second", "bob", "two")
    nothing = helper(world, "nothing", None, None)
    half = helper(world, "half", "ada", None)
    return {
        "a name on PATH": "[credential]\n\thelper = first\n",
        "a path with arguments": f"[credential]\n\thelper = {second} --x\n",
        "a shell command": f'[credential]\n\thelper = "!{second}"\n',
        "the first that knows": f"[credential]\n\thelper = {nothing}\n\thelper = first\n\thelper = {second}\n",
        "reset by an empty value": f"[credential]\n\thelper = first\n\thelper =\n\thelper = {second}\n",
        "for the URL alone": '[credential "https://other.example"]\n\thelper = first\n'
        f'[credential "https://git.example"]\n\thelper = {second}\n',
        "a URL's reset": f'[credential]\n\thelper = first\n[credential "https://git.example"]\n\thelper =\n\thelper = {second}\n',
        "user from one, password from the next": f"[credential]\n\thelper = {half}\n\thelper = {second}\n",
        "a configured user": f'[credential "https://git.example"]\n\tusername = cfg\n[credential]\n\thelper = {second}\n',
        "a helper that fails": "[credential]\n\thelper = !false\n\thelper = first\n",
        "a helper that is not there": "[credential]\n\thelper = absent\n\thelper = first\n",
        "a user in the URL": f"[credential]\n\thelper = {second}\n",
    }


def test_helpers_are_asked_as_git_asks_them(world: World) -> None:
    path = f"{world.home / 'bin'}:{world.env['PATH']}"
    for title, text in helper_cases(world).items():
        (world.home / ".gitconfig").write_text(text)
        url = "https://zoe@git.example/x.git" if "in the URL" in title else "https://git.example/x.git"
        found = ask(world, url, PATH=path)
        assert isinstance(found, credentials.Credential), title
        assert (found.user, found.password) == filled(world, url, PATH=path), title


def test_a_password_in_a_helpers_command_is_no_argument_of_a_child(world: World) -> None:
    seen = world.root / "seen"
    show = "for p in $$ $PPID; do tr '\\\\0' ' ' < /proc/$p/cmdline; done; env"
    (world.home / ".gitconfig").write_text(
        f'[credential]\n\thelper = "!true hunter2; ({show}) > {seen}; echo username=a; echo password=b; :"\n'
    )
    found = ask(world, "https://git.example/x.git")
    assert isinstance(found, credentials.Credential)
    assert "PATH=" in seen.read_text() and "hunter2" not in seen.read_text()


def test_a_helper_gets_the_path_only_where_it_is_to(world: World) -> None:
    asked = helper(world, "git-credential-first", "ada", "one").with_suffix(".asked")
    path = f"{world.home / 'bin'}:{world.env['PATH']}"
    (world.home / ".gitconfig").write_text("[credential]\n\thelper = first\n")
    ask(world, "https://ada@git.example:8443/a/x.git", PATH=path)
    assert asked.read_text().split() == ["protocol=https", "host=git.example:8443", "username=ada"]
    (world.home / ".gitconfig").write_text("[credential]\n\thelper = first\n\tuseHttpPath = true\n")
    ask(world, "https://git.example/a/x.git", PATH=path)
    assert "path=a/x.git" in asked.read_text().split()


def test_askpass_is_asked_when_no_helper_knows(world: World) -> None:
    program = script(world.home / "ask", 'case "$1" in User*) echo ada;; *) echo "for $1";; esac')
    found = ask(world, "https://git.example/x.git", GIT_ASKPASS=str(program))
    assert isinstance(found, credentials.Credential)
    assert (found.user, found.password) == filled(world, "https://git.example/x.git", GIT_ASKPASS=str(program))
    world.git("config", "core.askPass", str(program))
    assert isinstance(ask(world, "https://git.example/x.git"), credentials.Credential)
    found = ask(world, "https://git.example/x.git", GIT_ASKPASS="/bin/false")
    assert isinstance(found, Problem) and "gave none" in found.message


def test_nobody_knows_a_credential(world: World) -> None:
    found = ask(world, "https://me:pw@git.example/x.git")
    assert isinstance(found, Problem)
    assert found.message == "https://git.example/x.git asks for credentials and no credential helper is configured that could have them"
    assert "--token-env" in (found.remedy or "")


def test_a_token_goes_out_early_with_the_configured_user(world: World) -> None:
    def early(url: str, **environ: str) -> credentials.Credential | Problem | None:
        location = locate(url)
        assert isinstance(location, Location)
        return credentials.find_early(location, load(world), environ, "TOKEN")

    found = early("https://git.example/x", TOKEN=" t0ken\n")
    assert isinstance(found, credentials.Credential) and (found.user, found.password) == ("x-access-token", "t0ken")
    assert "t0ken" not in repr(found)
    found = early("https://bot@git.example/x", TOKEN="t")
    assert isinstance(found, credentials.Credential) and found.user == "bot"
    world.git("config", "credential.https://git.example.username", "oauth2")
    found = early("https://git.example/x", TOKEN="t")
    assert isinstance(found, credentials.Credential) and found.user == "oauth2"
    assert isinstance(early("https://git.example/x"), Problem)


@pytest.mark.parametrize(
    ("url", "configured", "environ", "expected"),
    [
        ("https://h/x", None, {}, None),
        ("https://h/x", None, {"http_proxy": "p:1"}, None),
        ("https://h/x", None, {"HTTPS_PROXY": "p:1"}, "http://p:1"),
        ("http://h/x", None, {"HTTP_PROXY": "p:1"}, None),
        ("http://h/x", None, {"http_proxy": "https://p:1"}, "https://p:1"),
        ("https://h/x", None, {"ALL_PROXY": "p:1"}, "http://p:1"),
        ("https://h/x", "q:2", {"https_proxy": "p:1"}, "http://q:2"),
        ("https://h/x", "", {"https_proxy": "p:1"}, None),
        ("https://a.h/x", "q:2", {"no_proxy": "b, .h"}, None),
        ("https://ah/x", "q:2", {"NO_PROXY": "h"}, "http://q:2"),
        ("https://10.1.2.3/x", "q:2", {"no_proxy": "10.0.0.0/8"}, None),
        ("https://h/x", "q:2", {"no_proxy": "*"}, None),
    ],
)
def test_the_proxy_is_the_one_git_would_use(url: str, configured: str | None, environ: dict[str, str], expected: str | None) -> None:
    assert githttp.find_proxy(url, configured, environ) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("main", "main", True),
        ("m*", "main", True),
        ("m*", "m/x", False),
        ("m/**", "m/x/y", True),
        ("**/x", "a/b/x", True),
        ("[", "[", False),
    ],
)
def test_globs(pattern: str, text: str, matches: bool) -> None:
    assert match_glob(pattern, text) is matches
