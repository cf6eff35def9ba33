"""A MkDocs hook: what pages link to outside docs/ becomes part of the documentation site.

In the repository a page links to any file by its relative path. MkDocs knows only the files in docs/. This hook adds
the others: pages (`PAGES`), source files as highlighted pages, folders as lists of their files, and pictures and data
as they are. It also rewrites the links to match. A link to a missing file is left as it is, so a strict build fails.
"""

import os
import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "results/README.md": "results.md",
    "results/pytorch/README.md": "public-traces.md",
}
"""Where pages of the repository stand in the site. Other pages of docs/ keep their place."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".txt": "text", ".tsv": "text", "": "text"}
"""Files shown as highlighted pages, by suffix. Any other file is copied."""
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(?:#([^)\s]*))?(?=\))")
"""The path and the anchor of a Markdown link that is no URL."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside docs/ that a page links to, directly or through another page."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for source in [file for file in files if _repository_path(file.src_uri) in PAGES or _is_source(file.src_uri)]:
        files.remove(source)
    pending = [*PAGES, *(_repository_path(file.src_uri) for file in files.documentation_pages())]
    added = set()
    while pending:
        path = pending.pop()
        if path in added or not (ROOT / path).exists():
            continue
        added.add(path)
        text, targets = _content(path, tracked)
        pending += targets
        if files.get_file_from_path(_site_path(path)) is None:
            content = (ROOT / path).read_bytes() if text is None else text
            files.append(File.generated(config, _site_path(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links from paths of the repository to paths of the site."""
    del config, files
    path = _repository_path(page.file.src_uri)
    if page.file.src_uri.startswith("files/"):
        return markdown
    return LINK.sub(lambda link: _rewritten(path, link[1], link[2]), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Tell MkDocs the anchors of a source file's lines, which it does not find in highlighted code."""
    del config, files
    if page.file.src_uri.startswith("files/"):
        page.present_anchor_ids = {*(page.present_anchor_ids or ()), *re.findall(r'id="(__codelineno-[\d-]+)"', html)}


def _content(path: str, tracked: list[str]) -> tuple[str | None, list[str]]:
    """Return the text of a page made of a repository path (None: the file is copied) and the paths it links to."""
    file = ROOT / path
    if file.is_dir():
        held = sorted(name for name in tracked if name.startswith(f"{path}/"))
        items = "\n".join(f"- [{name}]({_relative(f'files/{path}/index.md', _site_path(name))})" for name in held)
        return f"{_front_matter(path)}{items}\n", held
    if path.endswith(".md"):
        text = file.read_text("utf-8")
        links = [posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1])) for link in LINK.finditer(text)]
        return text, [link for link in links if not link.startswith("..")]
    if file.suffix in LANGUAGES:
        return f"{_front_matter(path)}````{LANGUAGES[file.suffix]}\n{file.read_text('utf-8')}\n````\n", []
    return None, []


def _front_matter(path: str) -> str:
    return f"---\nsearch: {{exclude: true}}\nhide: [navigation]\n---\n# {path}\n\n"


def _rewritten(page: str, target: str, anchor: str | None) -> str:
    """Return a link of a page as the site needs it. A line `#L7` of a source file becomes the anchor of that line."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if path.startswith("..") or not (ROOT / path).exists():
        return target if anchor is None else f"{target}#{anchor}"
    link = _relative(_site_path(page), _site_path(path))
    line = re.fullmatch(r"L(\d+)", anchor or "")
    return link + (f"#__codelineno-0-{line[1]}" if line else f"#{anchor}" if anchor else "")


def _site_path(path: str) -> str:
    """Return where a path of the repository stands in the site's sources."""
    if path in PAGES:
        return PAGES[path]
    if path.endswith(".md"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"files/{path}/index.md"
    return f"files/{path}" + (".md" if Path(path).suffix in LANGUAGES else "")


def _repository_path(site_path: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((path for path, page in PAGES.items() if page == site_path), f"docs/{site_path}")


def _is_source(site_path: str) -> bool:
    """Whether a file of docs/ is shown as a page of its own instead of being copied."""
    return site_path == "README.md" or Path(site_path).suffix in LANGUAGES


def _relative(page: str, target: str) -> str:
    return os.path.relpath(target, posixpath.dirname(page) or ".")
