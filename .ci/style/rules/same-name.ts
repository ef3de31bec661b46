/**
 * An exported name means one thing in the whole house. Two rooms that export a class, a type or a function under one
 * name make a reader of the one think of the other.
 */
import ts from 'typescript';
import { type Finding, findingAt, isProduct, roomOf, type StyleRule } from '../rule.ts';
import { hasModifier } from '../walk.ts';

export const sameName: StyleRule = {
  name: 'same-name',
  instead: 'give it a name that no other room exports, or one home below both rooms',
  find(files) {
    const exported = new Map<string, Finding[]>();
    for (const file of files.filter(isProduct))
      for (const statement of file.source.statements)
        if (hasModifier(statement, ts.SyntaxKind.ExportKeyword))
          for (const name of namesOf(statement)) {
            const finding = findingAt(file, statement.getStart(file.source), name);
            exported.set(name, [...(exported.get(name) ?? []), finding]);
          }
    return [...exported.values()]
      .filter((all) => new Set(all.map(({ path }) => roomOf(path))).size > 1)
      .flat();
  },
};

function namesOf(statement: ts.Statement): string[] {
  if (
    ts.isClassDeclaration(statement) ||
    ts.isInterfaceDeclaration(statement) ||
    ts.isTypeAliasDeclaration(statement) ||
    ts.isFunctionDeclaration(statement)
  )
    return statement.name ? [statement.name.text] : [];
  return [];
}
