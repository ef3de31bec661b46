/** Comments are prose and keep within a column; the formatter, which sees to the code, leaves them alone. */
import ts from 'typescript';
import { type Finding, findingAt, type ParsedFile, type StyleRule } from '../rule.ts';

/** Ten more than the formatter gives to code. Lower: more lines. Higher: lines of which an editor shows a part. */
const commentColumns_max = 120;

export const commentWidth: StyleRule = {
  name: 'comment-width',
  instead: `a comment ends before column ${commentColumns_max + 1}`,
  find: (files) => files.flatMap(wideComments),
};

function wideComments(file: ParsedFile): Finding[] {
  const { text } = file.source;
  return file.source.getLineStarts().flatMap((start, index, starts) => {
    const line = text.slice(start, starts[index + 1]).trimEnd();
    if (line.length <= commentColumns_max) return [];
    const comment = /(^\s*(\*|\/\/|\/\*))|(\s\/\/ )|(\/\*\*? )/.exec(line);
    if (!comment || !isComment(file.source, start + comment.index + comment[0].length - 1)) return [];
    return [findingAt(file, start, `${line.length} columns`)];
  });
}

/** Whether a position lies between tokens rather than in one, such as a template that spans lines. */
function isComment(source: ts.SourceFile, position: number): boolean {
  let node: ts.Node = source;
  for (;;) {
    const child: ts.Node | undefined = node
      .getChildren(source)
      .find((each) => each.pos <= position && position < each.end);
    if (child === undefined || position < child.getStart(source)) return true;
    if (ts.isToken(child) || child.getChildCount(source) === 0) return false;
    node = child;
  }
}
